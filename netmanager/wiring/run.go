package wiring

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/embedded"
	"github.com/treeline-edge/treeline/netmanager/dataplane/ebpf"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/socket"
)

// manager is what Run puts together.
type manager struct {
	cfg       Config
	log       *slog.Logger
	data      *os.Root
	creds     credentials // as they were at the start; who the node is does not change
	key       api.PeerKey
	core      *overlay.Core
	loop      *loop.Loop[overlay.Input]
	orders    *orders
	links     *links
	chooser   *chooser
	tunnel    *tunnel
	uplink    *uplink
	listening *listening
	exits     *watches
	sampling  *sampler
	checker   *checker
	meter     counters
	lasting   lasting

	nudge  chan struct{} // has the machine's place looked at
	saying sync.Mutex    // guards the order in which the core is told where the node is

	mu     sync.Mutex // guards the fields below
	says   api.NetSelf
	place  place
	pair   ca.Pair
	said   bool  // place was
	leased bool  // the core has a lease
	kernel error // why the kernel does not follow the core
}

// Run is the netmanager until ctx ends. The network of workloads lives on in the
// kernel, where it needs no netmanager, and the next life takes it over.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	data, err := openData(cfg.Data)
	if err != nil {
		return err
	}
	defer data.Close()
	if cfg.Remove {
		return remove(ctx, cfg, data, log)
	}
	key, err := overlayKey(data)
	if err != nil {
		return err
	}
	st, err := embedded.Open(filepath.Join(cfg.Data, "net.db"))
	if err != nil {
		return err
	}
	defer st.Close()
	creds, err := awaitCredentials(ctx, cfg.Credentials, log)
	if err != nil {
		return err
	}
	m := &manager{
		cfg: cfg, log: log.With("node", creds.ID), data: data, creds: creds, key: api.PeerKey(key.PublicKey().Bytes()),
		checker: &checker{verifier: creds.verifier(), log: log},
		uplink:  &uplink{log: log, ready: api.NetReady{Error: "the netmanager has just started"}},
		nudge:   make(chan struct{}, 1), kernel: errStarting, pair: creds.pair,
	}
	m.listening = newListening(m.serves, m.log)
	m.exits = newExits(m.exited)
	if m.links, err = newLinks(cfg.Prefix, data, m.log); err != nil {
		return err
	}
	m.links.clear = m.clearAddresses
	m.sampling = newSampler(m.attached, m.links.untwin, m.post, m.log)
	defer m.links.link.Close()
	if err := m.restore(ctx, st); err != nil {
		return err
	}
	if m.tunnel, err = m.openTunnel(key); err != nil {
		return err
	}
	hold, err := m.openHold()
	if err != nil {
		return err
	}
	names, err := m.openResolver()
	if err != nil {
		return err
	}
	m.orders = newOrders()
	m.chooser = newChooser(cfg, data, m.log)
	m.orders.open, m.orders.links, m.orders.log = m.chooser.open, m.links, m.log
	m.orders.hold, m.orders.resolver, m.orders.tunnel = hold, names, m.tunnel
	m.orders.counted = func(n map[api.PeerKey][2]uint64) { m.post(overlay.Counted{Peers: n}) }
	m.orders.state, m.orders.used, m.orders.synced = m.plane, m.used, m.synced
	ln, err := socket.Listen(cfg.Socket)
	if err != nil {
		return err
	}
	return daemon.RunAll(ctx,
		daemon.Part{Name: "core", Run: m.loop.Run},
		daemon.Part{Name: "node", Run: func(ctx context.Context) error { return m.live(ctx, ln) }},
		daemon.Part{Name: "tunnel", Run: m.tunnel.Run},
		daemon.Part{Name: "hold", Run: hold.Run},
		daemon.Part{Name: "names", Run: func(ctx context.Context) error {
			return names.Run(ctx, netip.AddrPortFrom(api.ResolverAddr, 53))
		}},
		daemon.Part{Name: "status", Run: m.serveStatus},
		daemon.Part{Name: "memory", Run: daemon.Slim},
	)
}

func openData(path string) (*os.Root, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("make the data directory: %w", err)
	}
	dir, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the data directory: %w", err)
	}
	return dir, nil
}

// restore makes the core and the loop that will own it.
func (m *manager) restore(ctx context.Context, st store.Store) error {
	docs, err := store.Load(ctx, st)
	if err != nil {
		return err
	}
	closed, err := prefixes(m.cfg.Closed)
	if err != nil {
		return err
	}
	open, err := prefixes(m.cfg.Open)
	if err != nil {
		return err
	}
	m.core = overlay.New(overlay.Config{
		Prefix: m.cfg.Prefix, Tunnel: m.tunnelDevice(), Hold: m.holdDevice(), VXLAN: m.cfg.VXLAN, Closed: closed, Open: open,
	})
	if err := m.core.Restore(docs); err != nil {
		return fmt.Errorf("restore the network: %w", err)
	}
	m.loop = loop.New(m.core, st, m.send, m.loopOptions(m.log))
	return nil
}

func (m *manager) loopOptions(log *slog.Logger) loop.Options[overlay.Input] {
	return loop.Options[overlay.Input]{
		Tick: overlay.Tick{}, Log: log, Observe: m.observe, Queue: 4096, Batch: 256, WhenFull: whenFull,
	}
}

func (m *manager) tunnelDevice() string { return m.cfg.Prefix + "tun" }
func (m *manager) holdDevice() string   { return m.cfg.Prefix + "hold" }

// send hands out what the core says. It runs on the core's owner and must not block.
func (m *manager) send(envs []api.Envelope) {
	for _, e := range envs {
		switch msg := e.Msg.(type) {
		case api.NetUp:
			m.uplink.send(msg)
		// The tunnel waits for nobody: a new life's sessions begin while the kernel is
		// still told.
		case overlay.TunnelSelf:
			m.tunnel.SetSelf(msg.NetLease)
		case overlay.TunnelPeer:
			m.tunnel.SetPeer(msg.Peer)
		case overlay.TunnelDrop:
			m.tunnel.DropPeer(msg.Key)
		case overlay.TunnelMeasure:
			m.tunnel.Measure(msg.Key)
		case overlay.TunnelCoord:
			m.tunnel.SetCoord(msg.Coordinate)
		case overlay.TunnelHere:
			m.tunnel.engine.SetHere(msg.Addresses)
		case overlay.TunnelTell:
			m.tunnel.Tell(msg.Key, msg.Notice)
		case overlay.TunnelSay:
			if msg.Connect {
				m.tunnel.Tell(msg.Key, msg.Message)
			} else {
				m.tunnel.Say(msg.Key, msg.Message)
			}
		default:
			m.orders.order(msg)
		}
	}
}

// live begins the core's life, has the kernel follow it, and lets the node engine in.
func (m *manager) live(ctx context.Context, ln net.Listener) error {
	host, err := watchHost() // before anything looks at it
	if err != nil {
		return err
	}
	defer host.end()
	if err := m.begin(ctx); err != nil {
		return err
	}
	if err := m.loop.Read(ctx, func() {
		for _, a := range m.core.Unready() { // of an earlier life
			m.listening.watch(a)
		}
		for _, a := range m.core.Attachments() {
			m.exits.watch(a)
		}
	}); err != nil {
		return err
	}
	self, err := m.creds.says(m.key)
	if err != nil {
		return err
	}
	m.mu.Lock()
	m.says = self
	m.mu.Unlock()
	m.moved(false)
	m.log.Info("netmanager runs", "cluster", m.creds.Cluster, "key", m.key, "listen", m.tunnel.engine.Local())
	if err := daemon.Notify(daemon.Ready); err != nil {
		m.log.Warn("systemd not told", "err", err)
	}
	return daemon.RunAll(ctx,
		daemon.Part{Name: "kernel", Run: m.orders.Run},
		daemon.Part{Name: "listening", Run: m.listening.Run},
		daemon.Part{Name: "exits", Run: m.exits.Run},
		daemon.Part{Name: "sampling", Run: m.sampling.Run},
		daemon.Part{Name: "socket", Run: func(ctx context.Context) error { return daemon.Serve(ctx, ln, socket.Handler(m), nil) }},
		daemon.Part{Name: "addresses", Run: func(ctx context.Context) error { return watchPlace(ctx, m.log, host, m.nudge, m.moved) }},
		daemon.Part{Name: "certificate", Run: func(ctx context.Context) error {
			watchCredentials(ctx, m.cfg.Credentials, m.creds, m.log, m.renewed)
			return nil
		}},
	)
}

// unnoted is how long a life says nothing whose beginning cannot be saved: the next one's
// number is another then, by the clock.
const unnoted = 1100 * time.Millisecond

// begin begins the core's life, on a full disk too: its workloads' tunnels hang on it.
func (m *manager) begin(ctx context.Context) error {
	err := m.loop.Do(ctx, overlay.Start{}, nil)
	if !unsaved(err) {
		return err
	}
	m.log.Warn("this life begins without being noted", "err", err)
	select {
	case <-time.After(unnoted):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// plane is all that the kernel should hold.
func (m *manager) plane(ctx context.Context) (s plane.State, err error) {
	err = m.loop.Read(ctx, func() { s = m.core.Plane() })
	return s, err
}

func (m *manager) used(u plane.Usage) {
	m.meter.usage(u)
	m.post(overlay.Used{Usage: u})
}

// synced says whether workloads can be attached: the kernel follows, and there is a lease.
func (m *manager) synced(err error) {
	m.mu.Lock()
	m.kernel = err
	m.mu.Unlock()
	m.settle()
}

// settle works out anew whether workloads can be attached.
func (m *manager) settle() {
	m.mu.Lock()
	defer m.mu.Unlock()
	err := m.kernel
	if err == nil && !m.leased {
		err = errNoLease
	}
	m.uplink.setReady(err)
}

// observe runs on the core's owner after each batch.
func (m *manager) observe(s loop.Sample) {
	m.meter.observe(s)
	m.repost() // what is not taken now is kept for the next time
	_, leased := m.core.Lease()
	m.mu.Lock()
	same := leased == m.leased
	m.leased = leased
	m.mu.Unlock()
	if same {
		return
	}
	m.settle()
	select {
	case m.nudge <- struct{}{}: // addresses of the ranges are not the machine's
	default:
	}
}

var (
	errStarting = errors.New("the netmanager has just started")
	errNoLease  = errors.New("the cluster has not given this node its part of the network yet")
)

// moved looks where the machine is, and says so where that changed. Which networks are
// closed hangs on those that the machine is connected to.
func (m *manager) moved(networks bool) {
	var ranges api.NetRanges
	if err := m.loop.Read(context.Background(), func() {
		if l, ok := m.core.Lease(); ok {
			ranges = l.Ranges
		}
	}); err != nil {
		return // we are ending
	}
	p, err := look(m.cfg.Prefix, ranges)
	if err != nil {
		m.log.Warn("where this machine is cannot be seen", "err", err)
		return
	}
	m.mu.Lock()
	first := !m.said
	same := p.equal(m.place) && m.said
	m.place, m.said = p, true
	m.mu.Unlock()
	if !same {
		m.log.Info("this machine's addresses", "addresses", p.own)
		m.tunnel.moved(p)
		m.sayWhere()
	}
	if !first && (!same || networks) {
		m.orders.order(resync{})
	}
}

// renewed takes a new certificate of the node.
func (m *manager) renewed(c credentials) {
	self, err := c.says(m.key)
	if err != nil {
		m.log.Error("the renewed certificate cannot be used", "err", err)
		return
	}
	m.log.Info("certificate renewed", "end", c.pair.Chain[0].NotAfter)
	m.mu.Lock()
	m.says, m.pair = self, c.pair
	m.mu.Unlock()
	m.sayWhere()
}

// sayWhere tells the core who and where the node is. Several find out that this
// changed: the newest is told last.
func (m *manager) sayWhere() {
	m.saying.Lock()
	defer m.saying.Unlock()
	m.mu.Lock()
	self, p := m.says, m.place
	m.mu.Unlock()
	self.Mapped = m.tunnel.seen()
	self.Endpoints = append(p.endpoints(m.tunnel.engine.Local().Port()), self.Mapped...)
	m.post(overlay.Self{NetSelf: self, OnLink: p.onLink})
}

// clearAddresses are the machine's addresses within the networks that its operator
// called clear.
func (m *manager) clearAddresses() (out []netip.Addr) {
	var clear []netip.Prefix
	if err := m.loop.Read(context.Background(), func() {
		l, _ := m.core.Lease()
		clear = slices.Clone(l.Clear)
	}); err != nil {
		return nil // we are ending
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, a := range m.place.own {
		if slices.ContainsFunc(clear, func(p netip.Prefix) bool { return p.Contains(a) }) {
			out = append(out, a)
		}
	}
	return out
}

// remove takes everything of ours away from the machine.
func remove(ctx context.Context, cfg Config, data *os.Root, log *slog.Logger) error {
	st, err := embedded.Open(filepath.Join(cfg.Data, "net.db")) // whoever runs holds it
	if err != nil {
		return err
	}
	if err := st.Close(); err != nil {
		return err
	}
	var errs []error
	for _, name := range []string{"nft", "ebpf"} {
		if name == "ebpf" && ebpf.Available() != nil {
			continue
		}
		errs = append(errs, removePlane(planes[name], cfg.Prefix))
	}
	l, err := newLinks(cfg.Prefix, data, log)
	if err != nil {
		return errors.Join(append(errs, err)...)
	}
	defer l.link.Close()
	errs = append(errs, l.remove(), removeDevices(cfg.Prefix))
	log.Info("the network is removed", "prefix", cfg.Prefix)
	return errors.Join(errs...)
}

var _ socket.Overlay = (*manager)(nil)
