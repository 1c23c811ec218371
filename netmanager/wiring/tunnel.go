package wiring

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
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/relaylink"
	tunnels "github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/tun"
	"github.com/treeline-edge/treeline/netmanager/wayfinder"
)

// tunnel is the engine with those that tell it where to send: the finder of ways
// and the link to the node's own relay.
type tunnel struct {
	*wayfinder.Finder
	engine *tunnels.Engine
	relay  *relaylink.Link // nil: relays are not used
	post   func(overlay.Input)
	mapped func() // told when the relay sees us elsewhere
	leases chan api.NetLease
	log    *slog.Logger

	mu    sync.Mutex // guards the fields below
	lease api.NetLease
	place place
	state relaylink.State
}

const portFile = "port"

// openTunnel opens the tunnel's device and socket. A port that was free once is
// asked for again: NATs and peers know it.
func (m *manager) openTunnel(key *ecdh.PrivateKey) (*tunnel, error) {
	t := &tunnel{post: m.post, mapped: m.sayWhere, leases: make(chan api.NetLease, 1), log: m.log}
	t.Finder = wayfinder.New(wayfinder.Options{
		Report: func(p overlay.Path) { m.post(p) }, Measured: func(s overlay.Measured) { m.post(s) }, Notice: m.post, Cluster: m.creds.Cluster, Refuse: t.refuse, Log: m.log,
		Lost: t.rebind,
	})
	if m.cfg.Relay {
		t.relay = relaylink.New(relaylink.Options{
			Send: func(to netip.AddrPort, b []byte) error { return t.engine.SendRaw(to, b) },
			Deliver: func(relay netip.AddrPort, b []byte) {
				t.engine.Receive(tunnels.Path{Kind: api.PathRelayTLS, Addr: relay}, b)
			},
			Dial: m.dialRelay, Changed: t.relayed, Log: m.log,
		})
	}
	dev, err := tun.Open(m.tunnelDevice(), tunnels.DefaultMTU)
	if err != nil {
		return nil, err
	}
	listen, err := m.cfg.listen()
	if err != nil {
		return nil, errors.Join(err, dev.Close())
	}
	open := func(at netip.AddrPort) (err error) {
		t.engine, err = tunnels.New(tunnels.Config{Device: dev, Key: [32]byte(key.Bytes()), Listen: at, Hooks: t.hooks()})
		return err
	}
	last := m.lastPort()
	err = syscall.EADDRINUSE
	if listen.Port() == 0 && last != 0 {
		err = open(netip.AddrPortFrom(listen.Addr(), last))
	}
	if errors.Is(err, syscall.EADDRINUSE) {
		err = open(listen)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("open the tunnel at %s: %w", listen, err), dev.Close())
	}
	if p := t.engine.Local().Port(); p != last {
		if err := ca.WriteFile(m.data, portFile, []byte(strconv.Itoa(int(p))+"\n"), 0o600); err != nil {
			return nil, errors.Join(fmt.Errorf("keep the tunnel's port: %w", err), dev.Close())
		}
	}
	return t, nil
}

// lastPort is the one of the last life; 0: none is known.
func (m *manager) lastPort() uint16 {
	text, err := m.data.ReadFile(portFile)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			m.log.Warn("the tunnel's last port is not known", "err", err)
		}
		return 0
	}
	n, _ := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 16)
	return uint16(n)
}

func (t *tunnel) hooks() tunnels.Hooks {
	h := tunnels.Hooks{Control: t.Control, Event: t.event}
	if t.relay != nil {
		h.Raw = t.relay.Receive
		h.SendTLS = func(to tunnels.Path, b []byte) { t.relay.SendTLS(to.Addr, to.Slot, to.Ticket, b) }
	}
	return h
}

// Run carries packets until ctx ends.
func (t *tunnel) Run(ctx context.Context) error {
	parts := []daemon.Part{
		{Name: "engine", Run: t.engine.Run},
		{Name: "ways", Run: func(ctx context.Context) error { return t.Finder.Run(ctx, t.engine) }},
	}
	if t.relay != nil {
		parts = append(parts, daemon.Part{Name: "relay", Run: t.relay.Run}, daemon.Part{Name: "lease", Run: t.lead})
	}
	return daemon.RunAll(ctx, parts...)
}

// SetSelf takes the node's lease, and does not block.
func (t *tunnel) SetSelf(l api.NetLease) {
	t.mu.Lock()
	t.lease = l
	t.mu.Unlock()
	t.tell()
	select {
	case t.leases <- l:
	default: // the newest counts
		select {
		case <-t.leases:
		default:
		}
		t.leases <- l
	}
}

// lead tells the relay of each lease.
func (t *tunnel) lead(ctx context.Context) error {
	for {
		select {
		case l := <-t.leases:
			if l.Relay.Addr == "" {
				continue
			}
			if err := t.relay.SetLease(ctx, l.Relay, l.Secret); err != nil && ctx.Err() == nil {
				t.log.Warn("the relay cannot be used", "err", err)
			}
		case <-ctx.Done():
			return nil
		}
	}
}

// moved says where the machine is now.
func (t *tunnel) moved(p place) {
	t.mu.Lock()
	t.place = p
	t.mu.Unlock()
	if t.relay != nil {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = t.relay.SetOwn(ctx, p.endpoints(t.engine.Local().Port()))
	}
	t.tell()
}

// rebind has our relay told soon where we are: it may have forgotten us, or our NAT.
func (t *tunnel) rebind() {
	if t.relay != nil {
		t.relay.Nudge()
	}
}

// relayed is told where the relay sees us.
func (t *tunnel) relayed(s relaylink.State) {
	t.mu.Lock()
	old := t.state
	t.state = s
	t.mu.Unlock()
	t.tell()
	if old.Mapped != s.Mapped {
		t.mapped()
	}
}

// tell tells engine and finder who and where we are.
func (t *tunnel) tell() {
	t.mu.Lock()
	l, p, s := t.lease, t.place, t.state
	t.mu.Unlock()
	t.engine.SetSelf(tunnels.Lease{Ranges: l.Ranges, Subnet: l.Subnet, Relays: s.Relays})
	self := wayfinder.Self{
		Self:  paths.Self{Own: p.endpoints(t.engine.Local().Port()), Links: p.onLink, NAT: s.NAT, Life: s.Life},
		Relay: l.Relay.Addr, Relays: s.Relays, TLS: s.TLS && !s.UDP,
	}
	if s.Mapped.IsValid() {
		self.Mapped = []netip.AddrPort{s.Mapped}
	}
	t.Finder.SetSelf(self)
}

// seen is where the relay sees us, if that is none of our own addresses.
func (t *tunnel) seen() []netip.AddrPort {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.state.Mapped.IsValid() || slices.Contains(t.place.own, t.state.Mapped.Addr()) {
		return nil
	}
	return []netip.AddrPort{t.state.Mapped}
}

// refuse reports addresses of the overlay itself: a tunnel through it would be a loop.
func (t *tunnel) refuse(a netip.Addr) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lease.Ranges.Untwin(a).IsValid()
}

func (t *tunnel) event(e tunnels.Event) {
	switch e := e.(type) {
	case tunnels.UnknownPeer:
		t.post(overlay.PeerUnknown{Key: e.Key, Claim: e.Claim})
	case tunnels.Stray:
		t.post(overlay.Stray{Key: e.Peer, Address: e.Address})
	default:
		t.Event(e)
	}
}

// dialRelay connects to the node's own cluster, whose port is its relay's by TLS.
func (m *manager) dialRelay(ctx context.Context, addr string) (net.Conn, error) {
	conf := m.checker.verifier.Client(identity.OfCluster(m.creds.Cluster), func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		return m.pair.TLS(false), nil
	})
	conf.NextProtos = []string{relaywire.Proto}
	return (&tls.Dialer{NetDialer: &net.Dialer{Timeout: 10 * time.Second}, Config: conf}).DialContext(ctx, "tcp", addr)
}

// Peers is socket.Overlay's.
func (m *manager) Peers(ctx context.Context) (all []api.PeerStatus, err error) {
	if err := m.loop.Read(ctx, func() { all = m.core.Peers() }); err != nil {
		return nil, err
	}
	stats := map[api.PeerKey]tunnels.Stats{}
	for _, s := range m.tunnel.engine.Stats() {
		stats[s.Peer] = s
	}
	for i := range all {
		p := &all[i]
		if why := m.tunnel.Reason(p.Key); why != "" && p.Path != api.PathRoute && p.Path != api.PathVXLAN {
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
	return all, nil
}

func removeDevices(prefix string) error {
	return errors.Join(tun.Remove(prefix+"tun"), tun.Remove(prefix+"hold"))
}
