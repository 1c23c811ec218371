// Package paths finds and keeps the way to one peer. A Machine starts on the
// peer's relay, so that nobody waits; exchanges candidate addresses with the peer
// inside their encrypted session; sends probes from both sides, so that NATs let
// them in; moves to an address once a probe to it was answered from it; and goes
// back to the relay when that falls silent. It measures what it uses (round trip,
// loss, the largest packet) and says why a path is no better.
//
// It is pure: Step takes the time and what happened and returns what to send and
// when to be woken. netmanager/tunnel carries it out. Who the peer is, and that
// its messages are authentic, is the tunnel's; where the own relay sees us is
// netmanager/relaylink's.
//
//	m := paths.New(paths.Config{Seed: seed, Refuse: overlay})
//	m.Step(now, paths.Self{Own: own, Links: links, Mapped: mapped, NAT: paths.Easy})
//	m.Step(now, paths.Peer{Relay: true, Endpoints: record.Endpoints})
//	out := m.Step(now, paths.Established{})
//	for _, s := range out.Send { … }
package paths

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Path is a way to the peer: an address, or the zero Path for the peer's relay.
type Path struct{ Addr netip.AddrPort }

// Relay reports whether the path leads through the peer's relay.
func (p Path) Relay() bool { return !p.Addr.IsValid() }

// String is the address, or "relay".
func (p Path) String() string {
	if p.Relay() {
		return "relay"
	}
	return p.Addr.String()
}

// Config is what a machine is told once.
type Config struct {
	// Seed makes the tokens that prove paths, and the jitter. A peer that knew it
	// could have us send to whomever it likes: it comes from a secret source of
	// chance in production, and from a number in tests.
	Seed [32]byte
	// Refuse reports addresses that are never probed, beside those that no machine
	// probes: the overlay's own ranges. nil refuses none.
	Refuse func(netip.Addr) bool
	// Coord is where we are in the latency space; nil, or what returns nil, tells the
	// peer nothing of it.
	Coord func() *api.Coordinate
	// Hide keeps our private addresses from the peer, which is another operator's.
	Hide bool
	// MaxMTU is the largest outer packet in bytes that is tried; 0 is 1500.
	MaxMTU int
}

// Send is a control message for the peer, to be sealed in the session and sent by
// one path.
type Send struct {
	Path Path
	Body []byte
	// Size is how long the packet with the outer IP header shall be, in bytes, by
	// zeros after Body; 0: as it comes.
	Size int
}

// Output is what one step asks for.
type Output struct {
	Send []Send
	// Changed says that Report differs in something that others act on: the path,
	// its MTU, whether it is plain, whether the peer is silent.
	Changed bool
	Wake    time.Time // zero: only an input can change anything
}

// Machine keeps the paths to one peer. Its owner calls one method at a time.
type Machine struct {
	cfg   Config
	count uint64 // of random draws
	now   time.Time
	out   Output

	self    Self
	peer    Peer
	session bool

	ours   offer      // what we tell the peer of ourselves
	theirs Candidates // what the peer told last

	relay   *way // nil: the peer has none
	direct  map[netip.AddrPort]*way
	current *way // nil: no way at all

	traffic time.Time // when data last went or came
	polled  time.Time // when Traffic last came
	waiting time.Time // since when data was sent by current and nothing came by it; zero: it did
	silent  bool
	asleep  bool
	samples uint64          // round trips by what was the current way
	coord   *api.Coordinate // of the peer, as it was at the last
	punch   punch
	budget  bucket // of probes to addresses that have proved nothing
	replies bucket
	last    Report // as of the end of the step before
}

// New returns a machine for a peer of which nothing is known yet.
func New(cfg Config) *Machine {
	if cfg.MaxMTU == 0 {
		cfg.MaxMTU = defaultMTU
	}
	m := &Machine{
		cfg: cfg, direct: map[netip.AddrPort]*way{}, asleep: true,
		budget: bucket{rate: 10, burst: 24}, replies: bucket{rate: 100, burst: 100},
	}
	m.ours.boot = uint32(m.random()) | 1
	return m
}

// Tries are the paths on which a handshake is to be tried, all at once: the relay
// first, then what the record names.
func (m *Machine) Tries() []Path {
	var list []Path
	if m.relay != nil {
		list = append(list, m.relay.path)
	}
	for _, x := range m.ways() {
		if x != m.relay && (x.origin == Record || x == m.current) && len(list) < maxTries {
			list = append(list, x.path)
		}
	}
	return list
}

// maxTries bounds Tries: each costs an initiation, and whoever is at the address
// its examination.
const maxTries = 5

// Step takes in what happened. now never runs backwards.
func (m *Machine) Step(now time.Time, in Input) Output {
	m.now, m.out = now, Output{}
	in.into(m)
	m.act()
	m.out.Wake = m.wake()
	if r := m.Report(); r.differs(m.last) {
		m.out.Changed, m.last = true, r
	}
	return m.out
}

// act does what is due.
func (m *Machine) act() {
	if !m.session {
		m.choose()
		return
	}
	m.expire()
	m.watch()
	if m.choose() {
		m.watch() // what is current now may be in doubt too
	}
	m.rest()
	m.punching()
	m.offer()
	m.keep()
}

// wake is the first moment at which act would do something.
func (m *Machine) wake() time.Time {
	if !m.session {
		return time.Time{}
	}
	var w soonest
	for _, x := range m.ways() {
		for _, p := range x.pending {
			if !p.missed {
				w.add(p.at.Add(x.patience()))
			}
		}
	}
	m.watchWake(&w)
	m.restWake(&w)
	m.offerWake(&w)
	m.punchWake(&w)
	m.keepWake(&w)
	return w.at
}

// ways are all ways, in one order: the current first, so that what it needs is
// not kept from it by others.
func (m *Machine) ways() []*way {
	list := make([]*way, 0, len(m.direct)+1)
	for _, x := range m.direct {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *way) int {
		return cmp.Or(cmp.Compare(a.class, b.class), a.path.Addr.Compare(b.path.Addr))
	})
	if m.relay != nil {
		list = append(list, m.relay)
	}
	return list
}

// random is the next of the seed's numbers. It cannot be told from those before.
func (m *Machine) random() uint64 {
	m.count++
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Clone(m.cfg.Seed[:]), m.count))
	return binary.BigEndian.Uint64(sum[:])
}

// jitter is d, up to a fifth longer.
func (m *Machine) jitter(d time.Duration) time.Duration {
	return d + time.Duration(m.random()%uint64(d/5+1))
}

// soonest is the earliest of the moments that were added.
type soonest struct{ at time.Time }

func (s *soonest) add(t time.Time) {
	if !t.IsZero() && (s.at.IsZero() || t.Before(s.at)) {
		s.at = t
	}
}

// bucket bounds a rate: rate tokens a second, of which burst are kept.
type bucket struct {
	rate, burst float64
	have        float64
	at          time.Time
}

func (b *bucket) take(now time.Time) bool {
	b.fill(now)
	if b.have < 1 {
		return false
	}
	b.have--
	return true
}

func (b *bucket) fill(now time.Time) {
	if b.at.IsZero() {
		b.have = b.burst
	} else {
		b.have = min(b.burst, b.have+b.rate*now.Sub(b.at).Seconds())
	}
	b.at = now
}

// next is when there is a token again, at the latest.
func (b *bucket) next(now time.Time) time.Time {
	if b.have >= 1 {
		return now
	}
	return now.Add(time.Duration((1-b.have)/b.rate*float64(time.Second)) + time.Millisecond)
}
