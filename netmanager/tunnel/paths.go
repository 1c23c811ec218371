package tunnel

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/paths"
	"github.com/treeline-edge/treeline/netmanager/tunnel/session"
)

// FinderConfig is what a Finder is made of.
type FinderConfig struct {
	// Refuse reports addresses that are never probed: the overlay's ranges. nil: none.
	Refuse func(netip.Addr) bool
	// Report is told how a peer is reached when that changes, and every 10 s while
	// the peer is talked to. It must not block. nil: nobody is.
	Report func(PathReport)
	// Lost is told that a path in use fell silent: what broke it may have broken the
	// binding at the relay as well. It must not block. nil: nobody is.
	Lost func()
	// Raw, SendTLS and Event are the engine's hooks for others: see Hooks.
	Raw     func(from netip.AddrPort, datagram []byte)
	SendTLS func(to Path, datagram []byte)
	Event   func(Event)
	// Resolve finds a relay's addresses; nil asks the system.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)
}

// PathReport is how a peer is reached.
type PathReport struct {
	Peer api.PeerKey
	Path Path // zero: none is known
	// Inner is how long packets to the peer may be.
	Inner int
	paths.Report
}

// Place is where this node is, as the relay link sees it.
type Place struct {
	paths.Self
	// TLS says that UDP is blocked and what is for relays goes over the own relay's
	// TLS connection.
	TLS bool
}

// Finder finds and keeps the paths to an engine's peers: it runs a paths.Machine
// for each and carries out what they want. Its methods are safe for concurrent
// use; those that change something wait until Run has taken it, or ctx ends.
//
//	f := tunnel.NewFinder(tunnel.FinderConfig{Report: report})
//	e, err := tunnel.New(tunnel.Config{Device: dev, Key: key, Hooks: f.Hooks()})
//	go f.Run(ctx, e)
//	f.SetPlace(ctx, place)
//	f.SetPeer(ctx, peer, false) // after e.SetPeer
type Finder struct {
	cfg    FinderConfig
	in     chan func(*finding)
	events chan Event   // apart, so that no peer's messages push them out
	heard  chan control // likewise
}

type control struct {
	peer api.PeerKey
	msg  paths.Received
}

// hookRoom is how many messages and events may wait for the finder. What does not
// fit is lost, as on the network: machines repeat what matters, and polling sees
// what was lost of events.
const hookRoom = 1024

// NewFinder returns a finder without peers.
func NewFinder(cfg FinderConfig) *Finder {
	if cfg.Resolve == nil {
		cfg.Resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	if cfg.Lost == nil {
		cfg.Lost = func() {}
	}
	if cfg.Report == nil {
		cfg.Report = func(PathReport) {}
	}
	return &Finder{
		cfg: cfg, in: make(chan func(*finding), 16), events: make(chan Event, hookRoom), heard: make(chan control, hookRoom),
	}
}

// Hooks are what the engine is to be made with.
func (f *Finder) Hooks() Hooks {
	return Hooks{
		Raw: f.cfg.Raw, SendTLS: f.cfg.SendTLS,
		Control: func(peer api.PeerKey, from Path, payload []byte) {
			select {
			case f.heard <- control{peer, paths.Received{From: outer(from), Body: slices.Clone(payload)}}:
			default:
			}
		},
		Event: func(ev Event) {
			select {
			case f.events <- ev:
			default:
			}
			if f.cfg.Event != nil {
				f.cfg.Event(ev)
			}
		},
	}
}

// outer is an engine's path as a machine knows it.
func outer(p Path) paths.Path {
	if p.relayed() {
		return paths.Path{}
	}
	return paths.Path{Addr: p.Addr}
}

func (f *Finder) do(ctx context.Context, do func(*finding)) error {
	select {
	case f.in <- do:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// SetPlace says where this node is; all machines learn of a change.
func (f *Finder) SetPlace(ctx context.Context, p Place) error {
	return f.do(ctx, func(v *finding) {
		tls := v.place.TLS != p.TLS
		v.place = p
		for _, q := range v.peers {
			if tls {
				v.aim(q)
			}
			v.step(q, p.Self)
		}
	})
}

// SetPeer has the paths to a peer found, or changes what its record says. hide
// keeps our private addresses from it, which is another operator's.
func (f *Finder) SetPeer(ctx context.Context, p api.Peer, hide bool) error {
	return f.do(ctx, func(v *finding) { v.set(p, hide) })
}

// DropPeer forgets a peer.
func (f *Finder) DropPeer(ctx context.Context, key api.PeerKey) error {
	return f.do(ctx, func(v *finding) { delete(v.peers, key) })
}

// Reports are how all peers are reached, in no order.
func (f *Finder) Reports(ctx context.Context) ([]PathReport, error) {
	got := make(chan []PathReport, 1)
	err := f.do(ctx, func(v *finding) {
		list := make([]PathReport, 0, len(v.peers))
		for _, q := range v.peers {
			list = append(list, v.report(q))
		}
		got <- list
	})
	if err != nil {
		return nil, err
	}
	select {
	case list := <-got:
		return list, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

const (
	pollEvery   = 100 * time.Millisecond // of what was sent and came, while there is traffic
	reportEvery = 10 * time.Second
	// pollFor is how long after the last traffic is polled: until the engine says
	// again that there is some.
	pollFor = quiet + time.Second
	// resolveAgain is how often the name of a relay in use is looked up.
	resolveAgain = 2 * time.Minute
)

// finding is what Run owns.
type finding struct {
	f       *Finder
	ctx     context.Context
	all     sync.WaitGroup // look-ups of names
	e       *Engine
	place   Place
	peers   map[api.PeerKey]*found
	traffic time.Time // when there last was some
	polled  time.Time
}

// found is a peer.
type found struct {
	key      api.PeerKey
	m        *paths.Machine
	relay    api.Relay
	at       netip.AddrPort // the relay's address; zero: not known yet
	asked    time.Time      // for that
	session  bool           // the machine was told of one
	record   []netip.AddrPort
	wake     time.Time
	path     Path // as the engine was told last
	inner    int
	tries    []Path
	sent     uint64 // packets, at the last poll
	came     uint64
	reported time.Time
	used     time.Time
}

// Run finds paths until ctx ends.
func (f *Finder) Run(ctx context.Context, e *Engine) error {
	ctx, cancel := context.WithCancel(ctx)
	v := &finding{f: f, ctx: ctx, e: e, peers: map[api.PeerKey]*found{}}
	defer v.all.Wait()
	defer cancel()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case do := <-f.in:
			do(v)
		case ev := <-f.events:
			v.event(ev)
		case c := <-f.heard:
			v.step(v.peers[c.peer], c.msg)
		case <-timer.C:
			v.tick(time.Now())
		}
		v.sleep(timer)
	}
}

// tick does what is due.
func (v *finding) tick(now time.Time) {
	if v.polling(now) && now.Sub(v.polled) >= pollEvery {
		v.poll(now)
	}
	for _, q := range v.peers {
		if !q.wake.IsZero() && !q.wake.After(now) {
			v.step(q, paths.Tick{})
		}
	}
}

func (v *finding) polling(now time.Time) bool {
	return !v.traffic.IsZero() && now.Sub(v.traffic) < pollFor
}

// sleep sets the timer to what is due next.
func (v *finding) sleep(timer *time.Timer) {
	var next time.Time
	if now := time.Now(); v.polling(now) {
		next = v.polled.Add(pollEvery)
	}
	for _, q := range v.peers {
		if !q.wake.IsZero() && (next.IsZero() || q.wake.Before(next)) {
			next = q.wake
		}
	}
	if next.IsZero() {
		timer.Stop()
		return
	}
	timer.Reset(max(0, time.Until(next)))
}

// poll tells the machines what the engine has counted.
func (v *finding) poll(now time.Time) {
	v.polled = now
	for _, s := range v.e.Stats() {
		q := v.peers[s.Peer]
		if q == nil {
			continue
		}
		in := paths.Traffic{Sent: s.SentPackets != q.sent}
		if s.ReceivedPackets != q.came {
			in.Heard = []paths.Path{outer(s.Carried)}
		}
		q.sent, q.came = s.SentPackets, s.ReceivedPackets
		if s.Session && !q.session {
			q.session = true
			v.step(q, paths.Established{From: outer(s.From)})
		}
		if !in.Sent && in.Heard == nil {
			continue
		}
		v.traffic, q.used = now, now
		v.step(q, in)
		if now.Sub(q.reported) >= reportEvery {
			q.reported = now
			v.f.cfg.Report(v.report(q))
		}
		if now.Sub(q.asked) >= resolveAgain && q.m.Report().Silent {
			v.resolve(q)
		}
	}
}

// event takes in what the engine says.
func (v *finding) event(ev Event) {
	now := time.Now()
	switch ev := ev.(type) {
	case Established:
		v.traffic = now
		if q := v.peers[ev.Peer]; q != nil {
			q.session = true
			v.step(q, paths.Established{From: outer(ev.From)})
		}
	case Traffic:
		v.traffic = now
		if q := v.peers[ev.Peer]; q != nil {
			v.step(q, paths.Traffic{Sent: true})
		}
	case Heard:
		v.traffic = now
	}
}

func (v *finding) set(p api.Peer, hide bool) {
	q := v.peers[p.Key]
	if q == nil {
		cfg := paths.Config{Refuse: v.f.cfg.Refuse, Hide: hide}
		_, _ = rand.Read(cfg.Seed[:]) // it never fails
		q = &found{key: p.Key, m: paths.New(cfg)}
		v.peers[p.Key] = q
		v.step(q, v.place.Self)
	}
	moved := q.relay.Addr != p.Relay.Addr
	q.relay, q.record = p.Relay, slices.Clone(p.Endpoints)
	if moved {
		q.at = netip.AddrPort{}
		v.resolve(q)
	}
	v.aim(q)
}

// aim tells the machine and the engine where the peer may be reached.
func (v *finding) aim(q *found) {
	v.step(q, paths.Peer{Relay: q.at.IsValid(), Endpoints: q.record})
	v.apply(q)
}

// resolve finds the address of the peer's relay.
func (v *finding) resolve(q *found) {
	if q.relay.Addr == "" {
		return
	}
	q.asked = time.Now()
	if at, err := netip.ParseAddrPort(q.relay.Addr); err == nil {
		q.at = at
		return
	}
	key, addr := q.key, q.relay.Addr
	v.all.Go(func() {
		at, err := v.f.lookup(v.ctx, addr)
		if err != nil {
			return // asked again while the peer is silent
		}
		_ = v.f.do(v.ctx, func(v *finding) {
			if q := v.peers[key]; q != nil && q.relay.Addr == addr {
				q.at = at
				v.aim(q)
			}
		})
	})
}

func (f *Finder) lookup(ctx context.Context, addr string) (netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return netip.AddrPort{}, err
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ips, err := f.cfg.Resolve(ctx, host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	if len(ips) == 0 {
		return netip.AddrPort{}, fmt.Errorf("%s has no address: %w", host, api.ErrNotFound)
	}
	return netip.AddrPortFrom(ips[0].Unmap(), uint16(n)), nil
}

// step gives a machine an input and does what it says.
func (v *finding) step(q *found, in paths.Input) {
	if q == nil {
		return
	}
	before := q.m.Report()
	out := q.m.Step(time.Now(), in)
	q.wake = out.Wake
	for _, s := range out.Send {
		// What cannot be sent is lost: the machine asks again, or gives the path up.
		_ = v.e.SendControl(q.key, v.inner(q, s.Path), pad(s, q))
	}
	if !out.Changed {
		return
	}
	v.apply(q)
	if r := q.m.Report(); r.Silent && !before.Silent || r.Path.Relay() && !before.Path.Relay() && !before.None {
		v.f.cfg.Lost()
	}
}

// pad makes a message as long as the packet shall be.
func pad(s paths.Send, q *found) []byte {
	n := room(s.Path, s.Size, q) - len(s.Body)
	if s.Size == 0 || n <= 0 {
		return s.Body
	}
	return append(slices.Clone(s.Body), make([]byte, n)...)
}

// room is how much an outer packet of size bytes carries on a path.
func room(p paths.Path, size int, q *found) int {
	addr := p.Addr.Addr()
	if p.Relay() {
		addr = q.at.Addr()
		size -= relayHeader
	}
	const v4, v6, udp = 20, 40, 8
	if addr.Is4() {
		return size - v4 - udp - session.Overhead
	}
	return size - v6 - udp - session.Overhead
}

// inner is a machine's path as the engine knows it; the zero Path where the relay's
// address is not known.
func (v *finding) inner(q *found, p paths.Path) Path {
	switch {
	case !p.Relay():
		return Path{Kind: api.PathDirect, Addr: p.Addr}
	case !q.at.IsValid():
		return Path{}
	case v.place.TLS:
		return Path{Kind: api.PathRelayTLS, Addr: q.at, Slot: q.relay.Slot, Ticket: q.relay.Ticket}
	}
	return Path{Kind: api.PathRelay, Addr: q.at, Slot: q.relay.Slot, Ticket: q.relay.Ticket}
}

// apply has the engine use what the machine has chosen, and tells of it.
func (v *finding) apply(q *found) {
	r := v.report(q)
	if r.Path != q.path {
		q.path = r.Path
		v.e.SetPath(q.key, r.Path)
	}
	if r.Inner != q.inner {
		q.inner = r.Inner
		v.e.SetMTU(q.key, r.Inner)
	}
	var tries []Path
	for _, p := range q.m.Tries() {
		if t := v.inner(q, p); t != (Path{}) {
			tries = append(tries, t)
		}
	}
	if !slices.Equal(tries, q.tries) {
		q.tries = tries
		v.e.SetTries(q.key, tries...)
	}
	q.reported = time.Now()
	v.f.cfg.Report(r)
}

func (v *finding) report(q *found) PathReport {
	r := PathReport{Peer: q.key, Report: q.m.Report(), Inner: DefaultMTU}
	if r.None {
		return r
	}
	r.Path = v.inner(q, r.Report.Path)
	// A path that was not measured yet, which takes a round trip, is taken for a
	// common one: what its MTU would otherwise shrink to, senders remember for minutes.
	if r.Sized {
		r.Inner = min(DefaultMTU, room(r.Report.Path, r.MTU, q))
	}
	return r
}
