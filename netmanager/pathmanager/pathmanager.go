// Package pathmanager keeps the path to each peer. It runs an overlay/paths.Machine per peer, carries its
// probes in the tunnel's sessions, makes the tunnel send on the path that the machine has chosen, and
// reports paths to the core. It also carries the core's messages (peermsg) to and from peers. The machine
// decides which path is best, and the core which peers there are. relaylink finds this node's mapped
// address.
//
// A peer without traffic causes no work.
//
//	m := pathmanager.New(pathmanager.Options{Post: loop.Post, Log: log})
//	engine, err := tunnel.New(tunnel.Config{Hooks: tunnel.Hooks{Control: m.Control, Event: m.Event}})
//	m.SetPeer(record); m.SetSelf(self)
//	err = m.Run(ctx, engine)
package pathmanager

import (
	"context"
	"crypto/rand"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
)

// Tunnel is the part of a tunnel.Engine that a manager uses.
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

// Options configure a manager. The functions are called from Run and must not block.
type Options struct {
	// Post passes an input to the core: Path, Measured, Session, and messages of peers.
	Post func(overlay.Input)
	// Cluster is this node's cluster. Peers of other clusters do not get private addresses.
	Cluster api.ClusterID
	// Refuse reports addresses that must not be probed: those of the overlay. May be nil.
	Refuse func(netip.Addr) bool
	// Lost is called when a path in use falls silent, because the binding at the relay may be lost too.
	// May be nil.
	Lost func()
	Log  *slog.Logger
}

// Self has this node's addresses and its relay.
type Self struct {
	paths.Self
	Relay  string           // host:port of this cluster's relay, as in peers' records
	Relays []netip.AddrPort // its addresses, the one in use first
	TLS    bool             // the relay is reached only over TLS
}

const (
	// pollInterval is how often the traffic of an active peer is read.
	pollInterval = 100 * time.Millisecond
	// activeTime is how long a peer stays active after its last traffic.
	activeTime = 3 * time.Second
	// minorInterval is the least time between two reports with only a small difference (see similar).
	minorInterval = 5 * time.Second
	// sampleInterval is the least time between two reported round trips of a peer.
	sampleInterval = time.Second
	// noticeRate and noticeBurst bound the messages to the core from one peer, per second and at once.
	// The peer repeats messages that are lost.
	noticeRate, noticeBurst = 20, 100
)

// Manager keeps the paths to all peers. Its methods are safe for concurrent use. Only Run blocks.
type Manager struct {
	opt   Options
	queue *queue

	// The fields below are owned by Run.
	ctx       context.Context
	t         Tunnel
	self      Self
	peers     map[api.PeerKey]*peer
	polled    time.Time                   // when the traffic of active peers was last read
	relays    map[string][]netip.AddrPort // addresses of peers' relays, by host:port
	resolving map[string]bool             // relays that are being looked up
	all       sync.WaitGroup

	reasons sync.Map // api.PeerKey → string
	coord   atomic.Pointer[api.Coordinate]
}

type peer struct {
	record api.Peer
	m      *paths.Machine
	wake   time.Time

	active time.Time // its traffic is polled until then
	stats  tunnel.Stats

	session    time.Time // start of the first session; zero: none
	silent     bool      // the tunnel reported Silent
	reported   overlay.Path
	reportedAt time.Time
	sampled    time.Time // when a round trip was last reported
	path       tunnel.Path
	mtu        int
	notices    *rate.Limiter
}

// New returns a manager. It does nothing before Run.
func New(o Options) *Manager {
	if o.Lost == nil {
		o.Lost = func() {}
	}
	return &Manager{
		opt: o, queue: newQueue(), peers: map[api.PeerKey]*peer{},
		relays: map[string][]netip.AddrPort{}, resolving: map[string]bool{},
	}
}

// SetSelf sets this node's addresses and relay.
func (m *Manager) SetSelf(s Self) {
	m.queue.put(slot{kind: setSelf}, func() {
		m.self = s
		for _, p := range m.peers {
			m.step(p, s.Self)
			m.apply(p, true)
		}
	})
}

// SetPeer adds a peer or updates its record.
func (m *Manager) SetPeer(r api.Peer) {
	m.queue.put(slot{kind: peerSet, peer: r.Key}, func() {
		p := m.peers[r.Key]
		m.t.SetPeer(r)
		if p == nil {
			var seed [32]byte
			_, _ = rand.Read(seed[:])
			p = &peer{record: r, notices: rate.NewLimiter(noticeRate, noticeBurst), m: paths.New(paths.Config{
				Seed: seed, Refuse: m.opt.Refuse, Coord: m.coord.Load, Hide: r.Cluster != m.opt.Cluster,
			})}
			m.peers[r.Key] = p
			m.step(p, m.self.Self)
		}
		p.record = r
		if len(m.relays[r.Relay.Addr]) == 0 { // also after a failed look-up
			m.lookup(r.Relay.Addr)
		}
		m.step(p, paths.Peer{Relay: r.Relay.Addr != "", Endpoints: r.Endpoints})
		m.apply(p, true)
	})
}

// DropPeer removes a peer and ends its session.
func (m *Manager) DropPeer(k api.PeerKey) {
	m.queue.drop(k, func() {
		delete(m.peers, k)
		m.reasons.Delete(k)
		m.t.DropPeer(k)
	})
}

// SetCoord sets this node's coordinate in the latency space. Peers that measure this node get it.
func (m *Manager) SetCoord(c api.Coordinate) { m.coord.Store(&c) }

// Measure measures the round trip to a peer. It starts a session if there is none.
func (m *Manager) Measure(k api.PeerKey) {
	m.about(measure, k, func(p *peer) {
		m.t.Connect(k)
		m.step(p, paths.Measure{})
	})
}

// Send sends a message to a peer. Without a session the message is lost; connect then starts a session.
func (m *Manager) Send(k api.PeerKey, msg peermsg.Message, connect bool) {
	m.queue.message(k, func() func() {
		return m.with(k, func(p *peer) {
			if connect {
				m.t.Connect(k)
			}
			if p.path == (tunnel.Path{}) {
				return
			}
			if err := m.t.SendControl(k, p.path, msg.Append(nil)); err != nil {
				m.opt.Log.Debug("send message to a peer failed", "peer", k, "via", p.path.Addr, "err", err)
			}
		})
	})
}

// notice passes a peer's message to the core, within the peer's rate.
func (m *Manager) notice(p *peer, msg peermsg.Message) {
	if !p.notices.Allow() {
		return
	}
	switch msg := msg.(type) {
	case peermsg.Notice:
		m.opt.Post(overlay.Noticed{Key: p.record.Key, Notice: msg})
	case peermsg.NoticeAck:
		m.opt.Post(overlay.NoticeAcked{Key: p.record.Key, NoticeAck: msg})
	case peermsg.Terms:
		m.opt.Post(overlay.Agreed{Key: p.record.Key, Terms: msg})
	case peermsg.TrafficProbe:
		m.opt.Post(overlay.Probed{Key: p.record.Key, TrafficProbe: msg})
	case peermsg.Traffic:
		m.opt.Post(overlay.Arrived{Key: p.record.Key, Traffic: msg})
	}
}

// Control is the Control hook of the tunnel. Messages of a peer beyond the bound are lost.
func (m *Manager) Control(k api.PeerKey, from tunnel.Path, payload []byte) {
	m.queue.message(k, func() func() {
		if msg, err := peermsg.Parse(payload); err == nil {
			return m.with(k, func(p *peer) { m.notice(p, msg) })
		}
		body := slices.Clone(payload)
		return m.with(k, func(p *peer) { m.step(p, paths.Received{From: pathOf(from), Body: body}) })
	})
}

// Event is the Event hook of the tunnel. It ignores UnknownPeer, Moved and Stray.
func (m *Manager) Event(e tunnel.Event) {
	switch e := e.(type) {
	case tunnel.Established:
		m.about(established, e.Peer, func(p *peer) {
			p.silent = false
			if p.session.IsZero() {
				p.session = time.Now()
			}
			m.step(p, paths.Established{From: pathOf(e.From)})
			m.activate(p)
			m.opt.Post(overlay.Session{Key: e.Peer})
		})
	case tunnel.Traffic:
		m.about(traffic, e.Peer, func(p *peer) {
			m.step(p, paths.Traffic{Sent: true})
			m.activate(p)
		})
	case tunnel.Recovered:
		m.about(silence, e.Peer, func(p *peer) { p.silent = false })
	case tunnel.Silent:
		m.about(silence, e.Peer, func(p *peer) { p.silent = true })
	}
}

// about queues fn for a peer. It replaces a waiting task of the same kind.
func (m *Manager) about(of kind, k api.PeerKey, fn func(*peer)) {
	m.queue.put(slot{kind: of, peer: k}, m.with(k, fn))
}

// with returns a task that calls fn with a peer, if it is still known, and applies the result.
func (m *Manager) with(k api.PeerKey, fn func(*peer)) func() {
	return func() {
		if p := m.peers[k]; p != nil {
			fn(p)
			m.apply(p, false)
		}
	}
}

// Reason returns why the path to a peer is not a better one; "" if it is the best or the peer is unknown.
func (m *Manager) Reason(k api.PeerKey) string {
	reason, _ := m.reasons.Load(k)
	s, _ := reason.(string)
	return s
}

// Run keeps the paths until ctx ends.
func (m *Manager) Run(ctx context.Context, t Tunnel) error {
	ctx, cancel := context.WithCancel(ctx)
	defer m.all.Wait()
	defer cancel()
	m.ctx, m.t = ctx, t
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-m.queue.filled:
			for _, t := range m.queue.take() {
				t.carryOut()
			}
		case <-timer.C:
			m.tick()
		case <-ctx.Done():
			return nil
		}
		if next := m.next(); next.IsZero() {
			timer.Stop()
		} else {
			timer.Reset(max(0, time.Until(next)))
		}
	}
}

// next returns the time of the next tick; zero: never.
func (m *Manager) next() time.Time {
	var next time.Time
	now := time.Now()
	for _, p := range m.peers {
		if next = step.Earliest(next, p.wake); p.active.After(now) {
			next = step.Earliest(next, m.polled.Add(pollInterval))
		}
	}
	return next
}

// activate polls the peer's traffic for activeTime.
func (m *Manager) activate(p *peer) { p.active = time.Now().Add(activeTime) }

func (m *Manager) tick() {
	now := time.Now()
	active := func(p *peer) bool { return p != nil && p.active.After(now) }
	if !now.Before(m.polled.Add(pollInterval)) && slices.ContainsFunc(slices.Collect(maps.Values(m.peers)), active) {
		m.polled = now
		for _, s := range m.t.Stats() {
			if p := m.peers[s.Peer]; active(p) {
				m.poll(p, s)
			}
		}
	}
	for _, p := range m.peers {
		if !p.wake.IsZero() && !p.wake.After(now) {
			m.step(p, paths.Tick{})
			m.apply(p, false)
		}
	}
}

// poll passes what was sent and received since the last poll to the peer's machine.
func (m *Manager) poll(p *peer, s tunnel.Stats) {
	was := p.stats
	p.stats = s
	in := paths.Traffic{Sent: s.SentPackets != was.SentPackets}
	// Only data counts: probes also arrive on paths that work in one direction only.
	if s.ReceivedPackets != was.ReceivedPackets {
		in.Received = []paths.Path{pathOf(s.Carried)}
	}
	if in.Sent || s.ReceivedPackets != was.ReceivedPackets {
		m.activate(p)
	}
	m.step(p, in)
	m.apply(p, false)
}

func (m *Manager) step(p *peer, in paths.Input) {
	before := p.m.Report()
	out := p.m.Step(time.Now(), in)
	p.wake = out.Wake
	r := p.m.Report()
	if now := time.Now(); r.Samples != before.Samples && now.Sub(p.sampled) >= sampleInterval {
		p.sampled = now
		m.opt.Post(overlay.Measured{Key: p.record.Key, RTT: r.Sample, Coord: r.Coord})
	}
	if r.Silent && !before.Silent || r.Path.Relay() && !before.Path.Relay() && !before.None {
		m.opt.Lost()
		m.lookup(p.record.Relay.Addr) // its relay may have moved
	}
	for _, s := range out.Send {
		via := m.via(p, s.Path)
		if via == (tunnel.Path{}) {
			continue
		}
		body := s.Body
		if room := s.Size - outer(via); room > len(body) {
			body = append(slices.Clone(body), make([]byte, room-len(body))...)
		}
		if err := m.t.SendControl(p.record.Key, via, body); err != nil {
			m.opt.Log.Debug("send probe failed", "peer", p.record.Key, "via", via.Addr, "bytes", len(body), "err", err)
		}
	}
}

// apply makes the tunnel use the path that the machine has chosen, and reports it to the core. tries
// means that the paths for handshakes may have changed.
func (m *Manager) apply(p *peer, tries bool) {
	r := p.m.Report()
	k := p.record.Key
	if tries {
		var ps []tunnel.Path
		for _, t := range p.m.Tries() {
			if via := m.via(p, t); via != (tunnel.Path{}) {
				ps = append(ps, via)
			}
		}
		m.t.SetTries(k, ps...)
	}
	var via tunnel.Path
	if !r.None {
		via = m.via(p, r.Path)
	}
	if via != p.path {
		p.path = via
		m.t.SetPath(k, via)
	}
	// Until the MTU of a path is measured, which takes a round trip, use the default: senders would
	// remember a smaller one for minutes.
	mtu := tunnel.DefaultMTU
	if r.Sized {
		mtu = min(mtu, r.MTU-outer(via))
	}
	if mtu != p.mtu {
		p.mtu = mtu
		m.t.SetMTU(k, mtu)
	}
	m.reasons.Store(k, r.Reason)
	now := time.Now()
	report := overlay.Path{
		Key: k, Kind: via.Kind, Addr: via.Addr, NoNAT: r.NoNAT, RTT: r.RTT, Loss: r.Loss, MTU: mtu, Idle: r.Idle, Silent: r.Silent || p.silent,
	}
	if p.session.IsZero() || report.Kind == "" {
		report.Kind = api.PathNone
	}
	if report == p.reported || similar(report, p.reported) && now.Sub(p.reportedAt) < minorInterval {
		return
	}
	p.reported, p.reportedAt = report, now
	m.opt.Post(report)
}

// similar reports whether two reports differ only by little in round trip and loss.
func similar(a, b overlay.Path) bool {
	near := (a.RTT-b.RTT).Abs() <= max(b.RTT/10, 200*time.Microsecond) && max(a.Loss-b.Loss, b.Loss-a.Loss) < 0.02
	a.RTT, a.Loss = b.RTT, b.Loss
	return near && a == b
}
