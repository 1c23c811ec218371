package host

import (
	"context"
	"crypto/ecdh"
	"crypto/tls"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/host/credentials"
	"github.com/treeline-edge/treeline/netmanager/host/machine"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/pathmanager"
	"github.com/treeline-edge/treeline/netmanager/relaylink"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
)

// Transport is the encrypted transport between nodes: the tunnel engine, the path manager
// that chooses where it sends, and the link to the node's own relay. It passes the node's
// identity and addresses to all three and to the core.
type Transport struct {
	*pathmanager.Manager
	core   *Core
	engine *tunnel.Engine
	relay  *relaylink.Link // nil: relays are not used
	prefix string          // of the overlay's devices
	node   *node
	leases chan wire.NetLease
	log    *slog.Logger

	report sync.Mutex // guards the order of reports to the core
}

// node is the state of this node. Its methods are safe for concurrent use.
type node struct {
	mu    sync.Mutex // guards state
	state nodeState
}

type nodeState struct {
	self  wire.NetSelf // without endpoints
	pair  ca.Pair
	lease wire.NetLease
	place machine.Place
	found bool // place is set
	relay relaylink.State
}

func (n *node) set(change func(*nodeState)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change(&n.state)
}

func (n *node) get() nodeState {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

// inOverlay reports whether an address is the overlay's own: a tunnel through the overlay
// would be a loop.
func (n *node) inOverlay(a netip.Addr) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state.lease.Ranges.To4(a).IsValid()
}

// dialRelay returns a function that connects to the relay of the node's own cluster by TLS,
// with the newest certificate.
func (n *node) dialRelay(v *trust.Verifier, cluster api.ClusterID) func(context.Context, string) (net.Conn, error) {
	return func(ctx context.Context, addr string) (net.Conn, error) {
		conf := v.Client(identity.OfCluster(cluster), func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			return n.get().pair.TLS(false), nil
		})
		conf.NextProtos = []string{relaywire.Proto}
		return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: conf}).DialContext(ctx, "tcp", addr)
	}
}

// TransportOptions configure a transport.
type TransportOptions struct {
	Core        *Core
	Credentials credentials.Credentials
	Self        wire.NetSelf // the node's identity, without its endpoints
	Verifier    *trust.Verifier
	Key         *ecdh.PrivateKey
	Data        *os.Root       // where the UDP port is kept
	Listen      netip.AddrPort // of the UDP socket; port 0: the last one, or any
	Prefix      string         // of the overlay's devices
	Relay       bool           // use relays
	Log         *slog.Logger
}

const portFile = "port"

// TunnelDevice returns the name of the tunnel's device.
func TunnelDevice(prefix string) string { return prefix + "tun" }

// NewTransport opens the tunnel's device and its socket. It prefers the port of an earlier start,
// because mappings in NATs and endpoints at peers have it.
func NewTransport(o TransportOptions) (*Transport, error) {
	n := &node{state: nodeState{self: o.Self, pair: o.Credentials.Pair}}
	t := &Transport{core: o.Core, prefix: o.Prefix, node: n, leases: make(chan wire.NetLease, 1), log: o.Log}
	rebind := func() {}
	if o.Relay {
		t.relay = relaylink.New(relaylink.Options{Dial: n.dialRelay(o.Verifier, o.Credentials.Cluster), Log: o.Log})
		rebind = t.relay.Nudge
	}
	t.Manager = pathmanager.New(pathmanager.Options{
		Post: o.Core.Post, Cluster: o.Credentials.Cluster, Refuse: n.inOverlay, Lost: rebind, Log: o.Log,
	})
	dev, err := tun.Open(TunnelDevice(o.Prefix), tunnel.DefaultMTU)
	if err != nil {
		return nil, err
	}
	if t.engine, err = openEngine(o, dev, t.hooks()); err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	return t, nil
}

// openEngine opens the engine on the port of the last start if it is free, and keeps the
// port for the next start.
func openEngine(o TransportOptions, dev tun.Device, hooks tunnel.Hooks) (e *tunnel.Engine, err error) {
	open := func(at netip.AddrPort) (*tunnel.Engine, error) {
		return tunnel.New(tunnel.Config{Device: dev, Key: [32]byte(o.Key.Bytes()), Listen: at, Hooks: hooks})
	}
	last := lastPort(o.Data, o.Log)
	err = syscall.EADDRINUSE
	if o.Listen.Port() == 0 && last != 0 {
		e, err = open(netip.AddrPortFrom(o.Listen.Addr(), last))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		e, err = open(o.Listen)
	}
	if err != nil {
		return nil, fmt.Errorf("open the tunnel at %s: %w", o.Listen, err)
	}
	if p := e.Local().Port(); p != last {
		if err := ca.WriteFile(o.Data, portFile, []byte(strconv.Itoa(int(p))+"\n"), 0o600); err != nil {
			return nil, fmt.Errorf("save the tunnel's port: %w", err)
		}
	}
	return e, nil
}

// lastPort returns the port of the last start, 0 if it is not known.
func lastPort(data *os.Root, log *slog.Logger) uint16 {
	text, err := data.ReadFile(portFile)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			log.Warn("read the tunnel's last port failed", "err", err)
		}
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	return uint16(n)
}

func (t *Transport) hooks() tunnel.Hooks {
	h := tunnel.Hooks{Control: t.Control, Event: func(e tunnel.Event) {
		switch e := e.(type) {
		case tunnel.UnknownPeer:
			t.core.Post(overlay.PeerUnknown{Key: e.Key, Claim: e.Claim})
		case tunnel.Stray:
			t.core.Post(overlay.Stray{Key: e.Peer, Address: e.Address})
		default:
			t.Event(e)
		}
	}}
	if t.relay != nil {
		h.Raw = t.relay.Receive
		h.SendTLS = func(to tunnel.Path, b []byte) { t.relay.SendTLS(to.Addr, to.Slot, to.Ticket, b) }
	}
	return h
}

// Run carries packets until ctx ends.
func (t *Transport) Run(ctx context.Context) error {
	parts := []daemon.Part{
		{Name: "engine", Run: t.engine.Run},
		{Name: "paths", Run: func(ctx context.Context) error { return t.Manager.Run(ctx, t.engine) }},
	}
	if t.relay != nil {
		parts = append(parts,
			daemon.Part{Name: "relay", Run: func(ctx context.Context) error { return t.relay.Run(ctx, relayTunnel{t}) }},
			daemon.Part{Name: "lease", Run: t.setRelayLeases})
	}
	return daemon.RunAll(ctx, parts...)
}

// Local returns the address of the UDP socket.
func (t *Transport) Local() netip.AddrPort { return t.engine.Local() }

// SetLocal sets which addresses of the node's subnet are in use.
func (t *Transport) SetLocal(addresses []netip.Addr) { t.engine.SetLocal(addresses) }

// SetLease takes the node's lease. It does not block.
func (t *Transport) SetLease(l wire.NetLease) {
	t.node.set(func(n *nodeState) { n.lease = l })
	t.apply()
	select {
	case t.leases <- l:
	default: // replace the lease that waits
		select {
		case <-t.leases:
		default:
		}
		t.leases <- l
	}
}

// setRelayLeases passes each lease to the relay link.
func (t *Transport) setRelayLeases(ctx context.Context) error {
	for {
		select {
		case l := <-t.leases:
			if l.Relay.Addr == "" {
				continue
			}
			if err := t.relay.SetLease(ctx, l.Relay, l.Secret); err != nil && ctx.Err() == nil {
				t.log.Warn("relay not used", "relay", l.Relay.Addr, "err", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// Locate finds the machine's place, and reports whether the kernel needs a sync: the closed networks
// depend on the networks that the machine is connected to. networks is whether these may have
// changed.
func (t *Transport) Locate(networks bool) (resync bool) {
	var ranges wire.NetRanges
	if err := t.core.Read(context.Background(), func(o overlay.View) {
		if l, ok := o.Lease(); ok {
			ranges = l.Ranges
		}
	}); err != nil {
		return false // the daemon is stopping
	}
	p, err := machine.Find(t.prefix, ranges)
	if err != nil {
		t.log.Warn("find the machine's addresses failed", "err", err)
		return false
	}
	var first, moved bool
	t.node.set(func(n *nodeState) {
		first = !n.found
		moved = first || !p.Equal(n.place)
		n.place, n.found = p, true
	})
	if moved {
		t.log.Info("machine's addresses changed", "addresses", p.Own)
		if t.relay != nil {
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			_ = t.relay.SetOwn(ctx, p.Endpoints(t.Local().Port()))
		}
		t.apply()
		t.Announce()
	}
	return !first && (moved || networks)
}

// SetIdentity sets a renewed certificate of the node.
func (t *Transport) SetIdentity(self wire.NetSelf, pair ca.Pair) {
	t.node.set(func(n *nodeState) { n.self, n.pair = self, pair })
	t.Announce()
}

// Announce posts the node's identity and addresses to the core.
func (t *Transport) Announce() {
	t.report.Lock() // so that the newest state is posted last
	defer t.report.Unlock()
	n := t.node.get()
	self := n.self
	// The address that the relay observes is reported only if it is not one of the machine's.
	if n.relay.Mapped.IsValid() && !slices.Contains(n.place.Own, n.relay.Mapped.Addr()) {
		self.Mapped = []netip.AddrPort{n.relay.Mapped}
	}
	self.Endpoints = append(n.place.Endpoints(t.Local().Port()), self.Mapped...)
	t.core.Post(overlay.Self{NetSelf: self, OnLink: n.place.OnLink})
}

// Rebind makes the relay link bind again soon, because the relay may have lost the binding.
func (t *Transport) Rebind() {
	if t.relay != nil {
		t.relay.Nudge()
	}
}

// relayTunnel is the tunnel as the relay link uses it.
type relayTunnel struct{ t *Transport }

func (r relayTunnel) Send(to netip.AddrPort, datagram []byte) error {
	return r.t.engine.SendRaw(to, datagram)
}

func (r relayTunnel) Deliver(relay netip.AddrPort, datagram []byte) {
	r.t.engine.Receive(tunnel.Path{Kind: api.PathRelayTLS, Addr: relay}, datagram)
}

func (r relayTunnel) Changed(s relaylink.State) {
	remapped := false
	r.t.node.set(func(n *nodeState) {
		remapped = n.relay.Mapped != s.Mapped
		n.relay = s
	})
	r.t.apply()
	if remapped {
		r.t.Announce()
	}
}

func (t *Transport) apply() {
	n := t.node.get()
	l, s := n.lease, n.relay
	t.engine.SetSelf(tunnel.Lease{Ranges: l.Ranges, Subnet: l.Subnet, Relays: s.Relays})
	self := pathmanager.Self{
		Self:  paths.Self{Own: n.place.Endpoints(t.Local().Port()), Links: n.place.OnLink, NAT: s.NAT, Lifetime: s.Lifetime},
		Relay: l.Relay.Addr, Relays: s.Relays, TLS: s.TLS && !s.UDP,
	}
	if s.Mapped.IsValid() {
		self.Mapped = []netip.AddrPort{s.Mapped}
	}
	t.SetSelf(self)
}

// Describe adds the tunnel's statistics to the peers.
func (t *Transport) Describe(peers []api.PeerStatus) {
	stats := map[api.PeerKey]tunnel.Stats{}
	for _, s := range t.engine.Stats() {
		stats[s.Peer] = s
	}
	for i := range peers {
		p := &peers[i]
		if why := t.Reason(p.Key); why != "" && p.Path != api.PathRoute && p.Path != api.PathVXLAN {
			p.Reason = why
		}
		s, ok := stats[p.Key]
		if !ok {
			continue
		}
		p.Tunnel, p.Handshake = api.Carried{Sent: s.SentBytes, Received: s.ReceivedBytes}, s.Handshake
		for _, n := range s.Drops {
			p.Dropped += n
		}
	}
}

// UnencryptedAddress returns the machine's first IPv4 address in a network on which the
// operator allows unencrypted traffic; the zero Addr if it has none.
func (t *Transport) UnencryptedAddress() netip.Addr {
	var networks []netip.Prefix
	if err := t.core.Read(context.Background(), func(o overlay.View) {
		l, _ := o.Lease()
		networks = slices.Clone(l.Unencrypted)
	}); err != nil {
		return netip.Addr{} // the daemon is stopping
	}
	for _, a := range t.node.get().place.Own {
		if a.Is4() && slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return a
		}
	}
	return netip.Addr{}
}
