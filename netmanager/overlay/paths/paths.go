// Package paths finds and keeps the path to one peer. A Machine starts on the peer's relay, so that
// traffic does not wait. It exchanges candidate addresses with the peer inside their session. Both sides
// then send probes, which open their NATs (hole punching). The machine moves to an address after a probe
// to it was answered from it, and back to the relay when that address stops answering. It measures the
// path in use (round trip, loss, MTU) and reports why there is no better one.
//
// The package does no I/O: Step takes the time and an event, and returns what to send and when to wake
// it. netmanager/tunnel carries that out and authenticates the peer and its messages.
// netmanager/relaylink gets this node's mapped address from its relay.
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
	"github.com/treeline-edge/treeline/internal/step"
	"golang.org/x/time/rate"
)

// Path is a path to the peer: an address, or zero for the peer's relay.
type Path struct{ Addr netip.AddrPort }

// Relay reports whether the path leads through the peer's relay.
func (p Path) Relay() bool { return !p.Addr.IsValid() }

// String returns the address, or "relay".
func (p Path) String() string {
	if p.Relay() {
		return "relay"
	}
	return p.Addr.String()
}

// Config configures a machine.
type Config struct {
	// Seed determines the tokens that prove paths, and the jitter. It must be secret and random: a peer
	// that knew it could direct this node's traffic to any address.
	Seed [32]byte
	// Refuse reports addresses that must not be probed, for example the overlay's own ranges. nil refuses
	// none. Loopback, multicast and similar addresses are always refused.
	Refuse func(netip.Addr) bool
	// Coord returns this node's coordinate in the latency space. Coord and its result may be nil.
	Coord func() *api.Coordinate
	// Hide keeps this node's private addresses from the peer, which belongs to another operator.
	Hide bool
	// MaxMTU is the largest outer packet in bytes that is probed; 0 means 1500.
	MaxMTU int
}

// Send is a control message for the peer. The owner encrypts it in the session and sends it on Path.
type Send struct {
	Path Path
	Body []byte
	// Size is the length of the packet in bytes, with the outer IP header. Zeros after Body pad it. 0: no
	// padding.
	Size int
}

// Output is what the owner has to do after a step.
type Output struct {
	Send []Send
	// Changed means that Report changed in a field that the owner uses: the path, its MTU, NoNAT, Proven,
	// Silent or Idle.
	Changed bool
	Wake    time.Time // zero: only an input can change anything
}

// Machine keeps the paths to one peer. It is not safe for concurrent use.
type Machine struct {
	cfg   Config
	count uint64 // of random draws
	now   time.Time
	out   Output

	self    Self
	peer    Peer
	session bool

	ours   offer      // this node's addresses for the peer
	theirs Candidates // the peer's addresses

	relay   *pathState // nil: the peer has no relay
	direct  map[netip.AddrPort]*pathState
	current *pathState // nil: there is no path

	traffic time.Time // when data was last sent or received
	polled  time.Time // of the last Traffic input
	waiting time.Time // since when data on current is unanswered; zero: it is not
	silent  bool
	asleep  bool
	samples uint64          // round trips on current paths
	coord   *api.Coordinate // the peer's, at the last of them
	punch   punch
	budget  *rate.Limiter // of probes to unproven addresses
	replies *rate.Limiter
	last    Report // after the previous step
}

// New returns a machine for a peer without known addresses.
func New(cfg Config) *Machine {
	if cfg.MaxMTU == 0 {
		cfg.MaxMTU = defaultMTU
	}
	m := &Machine{
		cfg: cfg, direct: map[netip.AddrPort]*pathState{}, asleep: true,
		budget: rate.NewLimiter(10, 24), replies: rate.NewLimiter(100, 100),
	}
	m.ours.boot = uint32(m.random()) | 1
	return m
}

// Tries lists the paths on which to try a handshake, all at once: the relay first, then
// the addresses in the record.
func (m *Machine) Tries() []Path {
	var list []Path
	if m.relay != nil {
		list = append(list, m.relay.path)
	}
	for _, x := range m.all() {
		if x != m.relay && (x.origin == Record || x == m.current) && len(list) < maxTries {
			list = append(list, x.path)
		}
	}
	return list
}

// maxTries bounds Tries. Each costs both ends a handshake message.
const maxTries = 5

// Step applies one input. now must not decrease.
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

// act does everything that is due.
func (m *Machine) act() {
	if !m.session {
		m.choose()
		return
	}
	m.expire()
	m.checkCurrent()
	if m.choose() {
		m.checkCurrent() // the new current path may have to be checked too
	}
	m.sleepIfIdle()
	m.sendPunches()
	m.offer()
	m.sendMeasurements()
}

func (m *Machine) wake() time.Time {
	if !m.session {
		return time.Time{}
	}
	var w soonest
	for _, x := range m.all() {
		for _, p := range x.pending {
			if !p.missed {
				w.add(p.at.Add(x.timeout()))
			}
		}
	}
	w.add(m.checkDue())
	if !m.asleep {
		w.add(m.traffic.Add(linger))
	}
	m.offerWake(&w)
	m.punchWake(&w)
	m.measurementWake(&w)
	return w.at
}

// all lists all paths in a fixed order, those of a better class first.
func (m *Machine) all() []*pathState {
	list := make([]*pathState, 0, len(m.direct)+1)
	for _, x := range m.direct {
		list = append(list, x)
	}
	slices.SortFunc(list, func(a, b *pathState) int {
		return cmp.Or(cmp.Compare(a.class, b.class), a.path.Addr.Compare(b.path.Addr))
	})
	if m.relay != nil {
		list = append(list, m.relay)
	}
	return list
}

// random returns the next pseudo-random number. It cannot be predicted from earlier ones.
func (m *Machine) random() uint64 {
	m.count++
	sum := sha256.Sum256(binary.BigEndian.AppendUint64(slices.Clone(m.cfg.Seed[:]), m.count))
	return binary.BigEndian.Uint64(sum[:])
}

// jitter returns d, lengthened by up to a fifth.
func (m *Machine) jitter(d time.Duration) time.Duration {
	return d + time.Duration(m.random()%uint64(d/5+1))
}

// soonest keeps the earliest of the times that were added.
type soonest struct{ at time.Time }

func (s *soonest) add(t time.Time) { s.at = step.Earliest(s.at, t) }

// nextToken returns a time at which a limiter has a token.
func nextToken(l *rate.Limiter, now time.Time) time.Time {
	missing := max(0, 1-l.TokensAt(now))
	return now.Add(time.Duration(missing/float64(l.Limit())*float64(time.Second)) + time.Millisecond)
}
