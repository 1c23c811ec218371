// Package wayfinder keeps the way to each peer: it gives every peer's
// overlay/paths.Machine its life, carries its probes inside the tunnel's sessions,
// has the tunnel send by the way that the machine has found, and tells the core
// what is observed. It carries the core's notices to peers as well, and theirs to
// it, and so their agreements. It decides nothing: which way is best is the machine's, which
// peers there are is the core's, where our own relay sees us is relaylink's.
//
// A peer that nobody talks to costs nothing.
//
//	w := wayfinder.New(wayfinder.Options{Report: func(p overlay.Path) { loop.Post(p) }})
//	engine, err := tunnel.New(tunnel.Config{Hooks: tunnel.Hooks{Control: w.Control, Event: w.Event}})
//	w.SetPeer(record); w.SetSelf(self)
//	err = w.Run(ctx, engine)
package wayfinder

import (
	"context"
	"crypto/rand"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/relaywire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/agree"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// Tunnel is what it needs of a tunnel.Engine, where the methods are explained.
type Tunnel interface {
	SetPeer(p api.Peer)
	DropPeer(k api.PeerKey)
	Connect(k api.PeerKey)
	SetPath(k api.PeerKey, p tunnel.Path)
	SetTries(k api.PeerKey, ps ...tunnel.Path)
	SetMTU(k api.PeerKey, n int)
	SendControl(k api.PeerKey, via tunnel.Path, payload []byte) error
	Stats() []tunnel.Stats
}

// Message is what nodes tell each other in their sessions, of overlay/notice or of
// overlay/agree.
type Message interface {
	// Append appends the message as it is on the wire.
	Append(b []byte) []byte
}

// Options are what it is told once.
type Options struct {
	// Report takes what is observed of the way to a peer. It must not block.
	Report func(overlay.Path)
	// Measured takes round trips to peers. It must not block. nil: nobody does.
	Measured func(overlay.Measured)
	// Notice takes what is to be known of notices and agreements: overlay.Session,
	// Noticed, Heeded, Agreed, Probed and Arrived. It must not block. nil: nobody does.
	Notice func(overlay.Input)
	// Cluster is the node's own: private addresses are kept from peers of others.
	Cluster api.ClusterID
	// Refuse reports addresses that must not be probed: the overlay's own.
	Refuse func(netip.Addr) bool
	// Lost is told that a path in use fell silent: what broke it may have broken our
	// binding at the relay as well. It must not block. nil: nobody is.
	Lost func()
	Log  *slog.Logger // slog.Default
}

// Self is where this node is.
type Self struct {
	paths.Self
	Relay  string           // of the own cluster, as records name it: host:port
	Relays []netip.AddrPort // its addresses, the one in use first
	TLS    bool             // it is reached over TLS alone
}

const (
	// poll is how often a peer that is spoken to is looked at.
	poll = 100 * time.Millisecond
	// rest is how long nothing must have passed for that to end.
	rest = 3 * time.Second
	// told is how long a measurement that changes little is kept to ourselves.
	told = 5 * time.Second
	// often is the least time between two round trips of a peer that are told.
	often = time.Second
	// noticeRate and noticeBurst bound the notices and agreements of one peer that are
	// taken, a second and at once. Those beyond are repeated by who told them.
	noticeRate, noticeBurst = 20, 100
)

// Finder finds ways. Its methods are safe for concurrent use and do not block.
type Finder struct {
	opt   Options
	inbox *inbox

	// Run's alone.
	ctx    context.Context
	t      Tunnel
	self   Self
	peers  map[api.PeerKey]*peer
	looked time.Time                   // when those who are spoken to were looked at
	relays map[string][]netip.AddrPort // of peers, by name
	asking map[string]bool
	all    sync.WaitGroup

	reasons sync.Map // api.PeerKey → string, for whoever asks
	coord   atomic.Pointer[api.Coordinate]
}

// peer is one of them.
type peer struct {
	record api.Peer
	m      *paths.Machine
	wake   time.Time

	active time.Time // until when it is looked at
	seen   tunnel.Stats

	session time.Time // since when
	silent  bool      // the tunnel says so
	said    overlay.Path
	saidAt  time.Time
	sampled time.Time // when a round trip was told
	path    tunnel.Path
	mtu     int

	notices float64 // that may still be taken at noticed
	noticed time.Time
}

// New is a finder that does nothing before Run.
func New(o Options) *Finder {
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.Lost == nil {
		o.Lost = func() {}
	}
	if o.Measured == nil {
		o.Measured = func(overlay.Measured) {}
	}
	if o.Notice == nil {
		o.Notice = func(overlay.Input) {}
	}
	return &Finder{
		opt: o, inbox: newInbox(), peers: map[api.PeerKey]*peer{},
		relays: map[string][]netip.AddrPort{}, asking: map[string]bool{},
	}
}

// SetSelf says where this node is.
func (f *Finder) SetSelf(s Self) {
	f.inbox.put(slot{kind: selfSet}, func() {
		f.self = s
		for _, p := range f.peers {
			f.step(p, s.Self)
			f.apply(p, true)
		}
	})
}

// SetPeer makes a peer known, or renews what is known of it.
func (f *Finder) SetPeer(r api.Peer) {
	f.inbox.put(slot{kind: peerSet, peer: r.Key}, func() {
		p := f.peers[r.Key]
		if p == nil {
			var seed [32]byte
			_, _ = rand.Read(seed[:])
			p = &peer{m: paths.New(paths.Config{Seed: seed, Refuse: f.opt.Refuse, Coord: f.coord.Load, Hide: r.Cluster != f.opt.Cluster})}
			f.peers[r.Key] = p
			p.record = r
			f.t.SetPeer(r)
			f.step(p, f.self.Self)
		}
		p.record = r
		f.t.SetPeer(r)
		f.resolve(r.Relay.Addr)
		f.step(p, paths.Peer{Relay: r.Relay.Addr != "", Endpoints: r.Endpoints})
		f.apply(p, true)
	})
}

// DropPeer forgets a peer; its session ends.
func (f *Finder) DropPeer(k api.PeerKey) {
	f.inbox.drop(k, func() {
		delete(f.peers, k)
		f.reasons.Delete(k)
		f.t.DropPeer(k)
	})
}

// SetCoord says where this node is in the latency space, for peers that measure it.
func (f *Finder) SetCoord(c api.Coordinate) { f.coord.Store(&c) }

// Measure has the round trip to a peer measured, in a session that begins for
// that where there is none.
func (f *Finder) Measure(k api.PeerKey) {
	f.about(measure, k, func(p *peer) {
		f.t.Connect(k)
		f.step(p, paths.Measure{})
	})
}

// Tell tells a peer, in a session that begins for that where there is none. Before
// there is one it is lost.
func (f *Finder) Tell(k api.PeerKey, m Message) {
	f.message(k, func(p *peer) {
		f.t.Connect(k)
		f.say(p, m)
	})
}

// Say tells a peer, in the session that there is. Without one it is lost.
func (f *Finder) Say(k api.PeerKey, m Message) {
	f.message(k, func(p *peer) { f.say(p, m) })
}

func (f *Finder) say(p *peer, m Message) {
	if p.path == (tunnel.Path{}) {
		return
	}
	if err := f.t.SendControl(p.record.Key, p.path, m.Append(nil)); err != nil {
		f.opt.Log.Debug("notice not sent", "peer", p.record.Key, "via", p.path.Addr, "err", err)
	}
}

// notice takes what a peer says that is the core's to hear.
func (f *Finder) notice(p *peer, m Message) {
	now := time.Now()
	p.notices = min(noticeBurst, p.notices+noticeRate*now.Sub(p.noticed).Seconds())
	p.noticed = now
	if p.notices < 1 {
		return
	}
	p.notices--
	switch m := m.(type) {
	case notice.Notice:
		f.opt.Notice(overlay.Noticed{Key: p.record.Key, Notice: m})
	case notice.Ack:
		f.opt.Notice(overlay.Heeded{Key: p.record.Key, Ack: m})
	case agree.Terms:
		f.opt.Notice(overlay.Agreed{Key: p.record.Key, Terms: m})
	case agree.Probe:
		f.opt.Notice(overlay.Probed{Key: p.record.Key, Probe: m})
	case agree.Arrived:
		f.opt.Notice(overlay.Arrived{Key: p.record.Key, Arrived: m})
	}
}

// Control is tunnel.Hooks'. Of a flood some is lost, as on the network.
func (f *Finder) Control(k api.PeerKey, from tunnel.Path, payload []byte) {
	f.inbox.message(k, func() func() {
		var m Message
		var err error
		if m, err = notice.Parse(payload); err != nil {
			m, err = agree.Parse(payload)
		}
		if err == nil {
			return f.with(k, func(p *peer) { f.notice(p, m) })
		}
		body := slices.Clone(payload)
		return f.with(k, func(p *peer) { f.step(p, paths.Received{From: found(from), Body: body}) })
	})
}

// Event is tunnel.Hooks', but for UnknownPeer, which is the core's.
func (f *Finder) Event(e tunnel.Event) {
	switch e := e.(type) {
	case tunnel.Established:
		f.about(established, e.Peer, func(p *peer) {
			p.silent = false
			if p.session.IsZero() {
				p.session = time.Now()
			}
			f.step(p, paths.Established{From: found(e.From)})
			f.watch(p)
			f.opt.Notice(overlay.Session{Key: e.Peer})
		})
	case tunnel.Traffic:
		f.about(traffic, e.Peer, func(p *peer) {
			f.step(p, paths.Traffic{Sent: true})
			f.watch(p)
		})
	case tunnel.Heard:
		f.about(silence, e.Peer, func(p *peer) { p.silent = false })
	case tunnel.Silent:
		f.about(silence, e.Peer, func(p *peer) { p.silent = true })
	}
}

// about has fn done with a peer, in place of what waits of the kind.
func (f *Finder) about(of kind, k api.PeerKey, fn func(*peer)) {
	f.inbox.put(slot{kind: of, peer: k}, f.with(k, fn))
}

// message has fn done with a peer, unless too many messages wait.
func (f *Finder) message(k api.PeerKey, fn func(*peer)) {
	f.inbox.message(k, func() func() { return f.with(k, fn) })
}

// with does fn with a peer, if it is still known, and carries its results out.
func (f *Finder) with(k api.PeerKey, fn func(*peer)) func() {
	return func() {
		if p := f.peers[k]; p != nil {
			fn(p)
			f.apply(p, false)
		}
	}
}

// Reason is why the way to a peer is no better one, "" if it is the best or the
// peer is not known.
func (f *Finder) Reason(k api.PeerKey) string {
	why, _ := f.reasons.Load(k)
	s, _ := why.(string)
	return s
}

// Run finds and keeps ways until ctx ends.
func (f *Finder) Run(ctx context.Context, t Tunnel) error {
	ctx, cancel := context.WithCancel(ctx)
	defer f.all.Wait()
	defer cancel()
	f.ctx, f.t = ctx, t
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-f.inbox.filled:
			for _, t := range f.inbox.take() {
				t.carryOut()
			}
		case <-timer.C:
			f.tick()
		case <-ctx.Done():
			return nil
		}
		if next := f.next(); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// next is when there is something to do.
func (f *Finder) next() time.Time {
	var next time.Time
	now := time.Now()
	for _, p := range f.peers {
		at := p.wake
		if look := f.looked.Add(poll); p.active.After(now) && (at.IsZero() || look.Before(at)) {
			at = look
		}
		if !at.IsZero() && (next.IsZero() || at.Before(next)) {
			next = at
		}
	}
	return next
}

// watch has the peer looked at while something passes.
func (f *Finder) watch(p *peer) { p.active = time.Now().Add(rest) }

func (f *Finder) tick() {
	now := time.Now()
	if !now.Before(f.looked.Add(poll)) && f.busy(now) {
		f.looked = now
		for _, s := range f.t.Stats() {
			if p := f.peers[s.Peer]; p != nil && p.active.After(now) {
				f.look(p, s)
			}
		}
	}
	for _, p := range f.peers {
		if !p.wake.IsZero() && !p.wake.After(now) {
			f.step(p, paths.Tick{})
			f.apply(p, false)
		}
	}
}

// busy reports whether a peer is spoken to.
func (f *Finder) busy(now time.Time) bool {
	for _, p := range f.peers {
		if p.active.After(now) {
			return true
		}
	}
	return false
}

// look sees what passed since the last look.
func (f *Finder) look(p *peer, s tunnel.Stats) {
	was := p.seen
	p.seen = s
	in := paths.Traffic{Sent: s.SentPackets != was.SentPackets}
	// Data alone: probes come by ways that carry in one direction, too.
	if s.ReceivedPackets != was.ReceivedPackets {
		in.Heard = []paths.Path{found(s.Carried)}
	}
	if in.Sent || s.ReceivedPackets != was.ReceivedPackets {
		f.watch(p)
	}
	f.step(p, in)
	f.apply(p, false)
}

// step steps the peer's machine and sends what it says.
func (f *Finder) step(p *peer, in paths.Input) {
	before := p.m.Report()
	out := p.m.Step(time.Now(), in)
	p.wake = out.Wake
	r := p.m.Report()
	if now := time.Now(); r.Samples != before.Samples && now.Sub(p.sampled) >= often {
		p.sampled = now
		f.opt.Measured(overlay.Measured{Key: p.record.Key, RTT: r.Sample, Coord: r.Coord})
	}
	if r.Silent && !before.Silent || r.Path.Relay() && !before.Path.Relay() && !before.None {
		f.opt.Lost()
		f.lookup(p.record.Relay.Addr) // its relay may be elsewhere by now
	}
	for _, s := range out.Send {
		via := f.via(p, s.Path)
		if via == (tunnel.Path{}) {
			continue
		}
		body := s.Body
		if room := s.Size - outer(via); room > len(body) {
			body = append(slices.Clone(body), make([]byte, room-len(body))...)
		}
		if err := f.t.SendControl(p.record.Key, via, body); err != nil {
			f.opt.Log.Debug("probe not sent", "peer", p.record.Key, "via", via.Addr, "bytes", len(body), "err", err)
		}
	}
}

// apply has the tunnel do what the machine has found, and tells the core.
func (f *Finder) apply(p *peer, tries bool) {
	now := time.Now()
	r := p.m.Report()
	k := p.record.Key
	if tries {
		var ps []tunnel.Path
		for _, t := range p.m.Tries() {
			if via := f.via(p, t); via != (tunnel.Path{}) {
				ps = append(ps, via)
			}
		}
		f.t.SetTries(k, ps...)
	}
	var via tunnel.Path
	if !r.None {
		via = f.via(p, r.Path)
	}
	if via != p.path {
		p.path = via
		f.t.SetPath(k, via)
	}
	// A path that was not measured yet, which takes a round trip, is taken for a
	// common one: what its MTU would otherwise shrink to, senders remember for minutes.
	mtu := tunnel.DefaultMTU
	if r.Sized {
		mtu = min(mtu, r.MTU-outer(via))
	}
	if mtu != p.mtu {
		p.mtu = mtu
		f.t.SetMTU(k, mtu)
	}
	f.reasons.Store(k, r.Reason)
	say := overlay.Path{
		Key: k, Kind: via.Kind, Addr: via.Addr, Plain: r.Plain, RTT: r.RTT, Loss: r.Loss, MTU: mtu, Idle: r.Idle, Silent: r.Silent || p.silent,
	}
	if p.session.IsZero() || say.Kind == "" {
		say.Kind = api.PathNone
	}
	if same(say, p.said) && (now.Sub(p.saidAt) < told || say == p.said) {
		return
	}
	p.said, p.saidAt = say, now
	f.opt.Report(say)
}

// same reports whether two observations tell the core the same.
func same(a, b overlay.Path) bool {
	near := (a.RTT-b.RTT).Abs() <= max(b.RTT/10, 200*time.Microsecond) && max(a.Loss-b.Loss, b.Loss-a.Loss) < 0.02
	a.RTT, a.Loss = b.RTT, b.Loss
	return near && a == b
}

// outer is what a datagram by the way has around an inner packet.
func outer(via tunnel.Path) int {
	n := 20 + 8 + session.Overhead
	if via.Addr.Addr().Unmap().Is6() {
		n += 20
	}
	if via.Kind != api.PathDirect {
		n += relaywire.HeaderLen
	}
	return n
}

// found is a tunnel's path as machines name it.
func found(p tunnel.Path) paths.Path {
	if p.Kind != api.PathDirect {
		return paths.Path{}
	}
	return paths.Path{Addr: p.Addr}
}

// via is a machine's path as the tunnel takes it; zero: it cannot be taken now.
func (f *Finder) via(p *peer, w paths.Path) tunnel.Path {
	if !w.Relay() {
		return tunnel.Path{Kind: api.PathDirect, Addr: w.Addr}
	}
	r := p.record.Relay
	out := tunnel.Path{Kind: api.PathRelay, Slot: r.Slot, Ticket: r.Ticket}
	if f.self.TLS {
		out.Kind = api.PathRelayTLS
	}
	switch {
	case r.Addr == f.self.Relay && len(f.self.Relays) > 0:
		out.Addr = f.self.Relays[0]
	case len(f.relays[r.Addr]) > 0:
		out.Addr = f.relays[r.Addr][0]
	default:
		return tunnel.Path{}
	}
	return out
}

// resolve finds where a peer's relay is, unless that is known. A name that is not
// found is asked for again when a record names it.
func (f *Finder) resolve(addr string) {
	if len(f.relays[addr]) == 0 {
		f.lookup(addr)
	}
}

// lookup finds where a peer's relay is now.
func (f *Finder) lookup(addr string) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil || f.asking[addr] {
		return
	}
	if a, err := netip.ParseAddrPort(addr); err == nil {
		f.relays[addr] = []netip.AddrPort{netip.AddrPortFrom(a.Addr().Unmap(), a.Port())}
		return
	}
	f.asking[addr] = true
	f.all.Go(func() {
		var list []netip.AddrPort
		ips, err := net.DefaultResolver.LookupNetIP(f.ctx, "ip", host)
		n, err2 := net.DefaultResolver.LookupPort(f.ctx, "udp", port)
		for _, ip := range ips {
			list = append(list, netip.AddrPortFrom(ip.Unmap(), uint16(n)))
		}
		if err != nil || err2 != nil {
			f.opt.Log.Warn("a peer's relay is not found", "relay", addr, "err", err)
		}
		f.inbox.put(slot{kind: relayFound, relay: addr}, func() {
			delete(f.asking, addr)
			if len(list) == 0 && len(f.relays[addr]) > 0 {
				return // what was true is the best guess
			}
			f.relays[addr] = list
			for _, p := range f.peers {
				if p.record.Relay.Addr == addr {
					f.apply(p, true)
				}
			}
		})
	})
}
