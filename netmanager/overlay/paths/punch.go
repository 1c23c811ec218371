package paths

import "time"

// schedule is when each address is probed in a round of punching, relative to its start. The first probe
// opens this node's NAT. Later ones pass the peer's NAT after the peer's probes have opened it.
var schedule = []time.Duration{0, 100 * time.Millisecond, 300 * time.Millisecond, 700 * time.Millisecond, 1500 * time.Millisecond}

// pace is the wait between probes to different addresses, because some NATs drop bursts.
const pace = 10 * time.Millisecond

// backoff is the wait after failed rounds.
var backoff = []time.Duration{5 * time.Second, 15 * time.Second, 45 * time.Second, 2 * time.Minute, 4 * time.Minute}

// punch is the state of the search for a direct path, in rounds with growing waits.
type punch struct {
	active bool
	began  time.Time
	next   time.Time // when a round begins; zero: none is planned
	fails  int       // rounds in a row that proved nothing
}

// acceptsRound reports whether the peer may begin a round by repeating its candidates.
func (m *Machine) acceptsRound() bool {
	return !m.punch.active && m.now.Sub(m.punch.began) > 2*time.Second
}

// restartPunching begins a round in the next step.
func (m *Machine) restartPunching() {
	if m.session && !m.asleep {
		m.punch = punch{next: m.now}
	}
}

// roundPlanned reports whether a round begins at punch.next. Rounds after the first only
// begin while there is traffic.
func (m *Machine) roundPlanned() bool {
	return !m.punch.active && !m.punch.next.IsZero() && (m.punch.fails == 0 || m.inUse())
}

func (m *Machine) beginRound() {
	m.punch.next = time.Time{}
	if m.self.NAT == Blocked || m.theirs.NAT == Blocked {
		return
	}
	m.punch.active, m.punch.began = true, m.now
	n := 0
	for _, x := range m.all() {
		if x.path.Relay() || x.proven {
			continue
		}
		x.tries, x.next = 0, m.now.Add(time.Duration(n)*pace)
		n++
	}
}

func (m *Machine) sendPunches() {
	if m.asleep {
		return
	}
	p := &m.punch
	if m.roundPlanned() && !p.next.After(m.now) {
		m.ours.renew() // the peer begins a round when it receives them
		m.beginRound()
	}
	if !p.active {
		return
	}
	left := false
	for _, x := range m.all() {
		if x.next.IsZero() || x.proven {
			x.next = time.Time{}
			continue
		}
		left = true
		if x.next.After(m.now) {
			continue
		}
		if !m.budget.AllowN(m.now, 1) {
			x.next = nextToken(m.budget, m.now)
			continue
		}
		m.probe(x, 0)
		if x.tries++; x.tries < len(schedule) {
			x.next = m.now.Add(m.jitter(schedule[x.tries] - schedule[x.tries-1]))
		} else {
			x.next = time.Time{}
		}
	}
	if !left && !m.roundEnd().After(m.now) {
		m.endRound()
	}
}

// roundEnd returns when the last probes of the round time out.
func (m *Machine) roundEnd() time.Time {
	end := m.punch.began
	for _, x := range m.direct {
		if !x.proven && len(x.pending) > 0 {
			if t := x.sent.Add(time.Second); t.After(end) {
				end = t
			}
		}
	}
	return end
}

func (m *Machine) endRound() {
	p := &m.punch
	p.active = false
	if len(m.direct) == 0 {
		return // nothing to probe until there is an address
	}
	for _, x := range m.direct {
		if x.proven {
			p.fails, p.next = 0, time.Time{}
			return
		}
	}
	p.next = m.now.Add(m.jitter(backoff[min(p.fails, len(backoff)-1)]))
	p.fails++
}

func (m *Machine) punchWake(w *soonest) {
	if m.asleep {
		return
	}
	if m.roundPlanned() {
		w.add(m.punch.next)
	}
	if !m.punch.active {
		return
	}
	left := false
	for _, x := range m.all() {
		if !x.next.IsZero() {
			w.add(x.next)
			left = true
		}
	}
	if !left {
		w.add(m.roundEnd())
	}
}
