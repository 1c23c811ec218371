package paths

import (
	"net/netip"
	"slices"
	"time"
)

// Input is what can happen to the paths to a peer.
type Input interface{ into(*Machine) }

type (
	// Self is where this node is. It comes first, and again when it changes.
	Self struct {
		Own    []netip.AddrPort // of the interfaces, with the tunnel's port
		Links  []netip.Prefix   // networks that the interfaces are on
		Mapped []netip.AddrPort // as the relay sees us
		Static []netip.AddrPort // by the operator's word
		NAT    NAT
		Life   time.Duration // that the NAT is known to keep a mapping; 0: not known
	}

	// Peer is what its record says of how to reach it.
	Peer struct {
		Relay     bool // it has one
		Endpoints []netip.AddrPort
	}

	// Established says that a session stands. One that replaces another changes
	// nothing: whether the peer has begun anew, its candidates say.
	Established struct{ From Path }

	// Received is a control message of the peer.
	Received struct {
		From Path
		Body []byte
	}

	// Traffic is what happened since the last one: whether data was sent to the peer
	// (by Report's path), and by which paths authentic packets came. While data is
	// sent it comes every 100 ms or so, and at once for the first after a pause.
	Traffic struct {
		Sent  bool
		Heard []Path
	}

	// Measure has the way in use measured now though nobody talks to the peer. What
	// may be told of at another time is not searched for: while it comes more often
	// than every few minutes, a way that was found is kept.
	Measure struct{}

	// Tick comes when Wake is reached.
	Tick struct{}
)

func (in Self) into(m *Machine) {
	old := m.self
	m.self = in
	if slices.Equal(old.Own, in.Own) && slices.Equal(old.Links, in.Links) {
		if old.NAT != in.NAT || !slices.Equal(old.Mapped, in.Mapped) || !slices.Equal(old.Static, in.Static) {
			m.again()
		}
		return
	}
	for _, x := range m.ways() {
		switch {
		case x.path.Relay():
		case m.refused(x.path.Addr):
			m.forget(x)
		default:
			x.class = m.classOf(x.path.Addr)
		}
	}
	if old.Own == nil {
		m.again() // it may have been told that we are nowhere
		return
	}
	m.ours.moved = true
	m.moved()
}

func (in Peer) into(m *Machine) {
	m.peer = in
	switch {
	case in.Relay && m.relay == nil:
		m.relay = newWay(Path{}, throughRelay, Record)
	case !in.Relay && m.relay != nil:
		m.forget(m.relay)
	}
	for _, addr := range in.Endpoints[:min(len(in.Endpoints), MaxCandidates)] {
		m.add(addr, Record)
	}
	for _, x := range m.ways() {
		if x != m.relay && x.origin == Record && !x.proven && !slices.Contains(in.Endpoints, x.path.Addr) {
			m.forget(x)
		}
	}
}

func (in Established) into(m *Machine) {
	first := !m.session
	m.session = true
	m.heard(in.From, true)
	m.use()
	if first {
		m.again()
	}
}

func (in Received) into(m *Machine) {
	msg, err := Parse(in.Body)
	if err != nil || !m.session {
		return
	}
	m.heard(in.From, false)
	switch msg := msg.(type) {
	case Probe:
		m.answer(in.From, msg)
	case Reply:
		m.answered(in.From, msg)
	case Candidates:
		m.told(in.From, msg)
	case Ack:
		m.ours.acked(msg.Rev)
	}
}

func (in Traffic) into(m *Machine) {
	for _, p := range in.Heard {
		m.heard(p, true)
	}
	if len(in.Heard) > 0 || in.Sent {
		m.use()
	}
	// What came may have answered what went, unless none of it came.
	if c := m.current; in.Sent && m.waiting.IsZero() && c != nil && !c.heard.Equal(m.now) {
		m.waiting = m.now
		if m.now.Sub(m.polled) <= poll {
			m.waiting = m.polled
		}
	}
	m.polled = m.now
}

// poll is the longest time between two Traffic that belong together.
const poll = 250 * time.Millisecond

func (Measure) into(m *Machine) {
	if !m.session {
		return
	}
	if m.asleep {
		m.use() // a way is looked for, and measured
		return
	}
	if most := m.now.Add(-awhile); m.traffic.Before(most) {
		m.traffic = most // in no use, and not forgotten
	}
	if m.current != nil {
		m.probe(m.current, 0)
	}
}

func (Tick) into(*Machine) {}
