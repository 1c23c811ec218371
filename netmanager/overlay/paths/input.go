package paths

import (
	"net/netip"
	"slices"
	"time"
)

// Input is an event for a Machine.
type Input interface{ into(*Machine) }

type (
	// Self has this node's addresses. It is the first input, and is repeated when they change.
	Self struct {
		Own      []netip.AddrPort // of the interfaces, with the tunnel's port
		Links    []netip.Prefix   // networks of the interfaces
		Mapped   []netip.AddrPort // as seen by the relay
		Static   []netip.AddrPort // configured by the operator
		NAT      NAT
		Lifetime time.Duration // how long the NAT keeps a mapping; 0: not known
	}

	// Peer has the addresses in the peer's record.
	Peer struct {
		Relay     bool // the peer has one
		Endpoints []netip.AddrPort
	}

	// Established means that there is a session. A session that replaces another one changes nothing: the
	// peer's Candidates show whether the peer restarted.
	Established struct{ From Path }

	// Received is a control message from the peer.
	Received struct {
		From Path
		Body []byte
	}

	// Traffic reports whether data was sent to the peer (on Report's path) since the last Traffic, and on
	// which paths authentic packets were received. While data is sent it comes about every 100 ms. It
	// comes at once after a pause.
	Traffic struct {
		Sent     bool
		Received []Path
	}

	// Measure measures the path in use even without traffic to the peer. It does not search for better
	// paths. If it is repeated every few minutes, a direct path is kept.
	Measure struct{}

	// Tick comes when Wake is reached.
	Tick struct{}
)

func (in Self) into(m *Machine) {
	old := m.self
	m.self = in
	if slices.Equal(old.Own, in.Own) && slices.Equal(old.Links, in.Links) {
		if old.NAT != in.NAT || !slices.Equal(old.Mapped, in.Mapped) || !slices.Equal(old.Static, in.Static) {
			m.restartPunching()
		}
		return
	}
	for _, x := range m.all() {
		if x != m.relay && m.refused(x.path.Addr) {
			m.remove(x)
		} else if x != m.relay {
			x.class = m.classOf(x.path.Addr)
		}
	}
	if old.Own == nil {
		m.restartPunching() // the peer may have received an empty list
		return
	}
	m.ours.moved = true
	m.unprove()
}

func (in Peer) into(m *Machine) {
	m.peer = in
	switch {
	case in.Relay && m.relay == nil:
		m.relay = &pathState{class: throughRelay, origin: Record}
	case !in.Relay && m.relay != nil:
		m.remove(m.relay)
	}
	for _, addr := range in.Endpoints[:min(len(in.Endpoints), MaxCandidates)] {
		m.add(addr, Record)
	}
	for _, x := range m.all() {
		if x != m.relay && x.origin == Record && !x.proven && !slices.Contains(in.Endpoints, x.path.Addr) {
			m.remove(x)
		}
	}
}

func (in Established) into(m *Machine) {
	first := !m.session
	m.session = true
	m.received(in.From, true)
	m.wakeUp()
	if first {
		m.restartPunching()
	}
}

func (in Received) into(m *Machine) {
	msg, err := Parse(in.Body)
	if err != nil || !m.session {
		return
	}
	m.received(in.From, false)
	switch msg := msg.(type) {
	case Probe:
		m.answer(in.From, msg)
	case Reply:
		m.answered(in.From, msg)
	case Candidates:
		m.receiveCandidates(in.From, msg)
	case Ack:
		if msg.Rev == m.ours.rev {
			m.ours.known, m.ours.moved = true, false
		}
	}
}

func (in Traffic) into(m *Machine) {
	for _, p := range in.Received {
		m.received(p, true)
	}
	if len(in.Received) > 0 || in.Sent {
		m.wakeUp()
	}
	// What was received may have answered what was sent.
	if c := m.current; in.Sent && m.waiting.IsZero() && c != nil && !c.received.Equal(m.now) {
		m.waiting = m.now
		if m.now.Sub(m.polled) <= poll {
			m.waiting = m.polled
		}
	}
	m.polled = m.now
}

// poll is the longest time between two consecutive Traffic inputs.
const poll = 250 * time.Millisecond

func (Measure) into(m *Machine) {
	if !m.session {
		return
	}
	if m.asleep {
		m.wakeUp() // starts the search for a path, which measures it
		return
	}
	if most := m.now.Add(-activeFor); m.traffic.Before(most) {
		m.traffic = most // kept, but not in use
	}
	if m.current != nil {
		m.probe(m.current, 0)
	}
}

func (Tick) into(*Machine) {}
