package paths

import (
	"time"
)

const (
	// awhile is how long traffic must have paused for a path to be no more measured,
	// and linger for it to be let go.
	awhile = 30 * time.Second
	linger = 5 * time.Minute

	// firstDoubt is how long data waits for a sign of life before the path is asked
	// for one. With three probes after it, each given patienceLeast, a peer that died
	// is known within a second.
	firstDoubt = 50 * time.Millisecond
	mostDoubt  = 5 * time.Second // between probes to a peer that is silent

	// keepFirst is how long every NAT keeps a mapping that nothing uses (the shortest
	// that are common live 30 s), keepLast what is asked of the most patient one.
	keepFirst = 20 * time.Second
	keepLast  = 110 * time.Second

	measureEvery = 10 * time.Second // of the current way while it is used
	compareEvery = 30 * time.Second // of the others
)

// use: the peer is talked to.
func (m *Machine) use() {
	m.traffic = m.now
	if !m.asleep {
		return
	}
	m.asleep = false
	m.again()
	if m.current != nil {
		m.measureSoon(m.current)
	}
}

func (m *Machine) used() bool { return !m.asleep && m.now.Sub(m.traffic) < awhile }

// doubt is when the current way is to be asked for a sign of life; zero: it is
// not in doubt.
func (m *Machine) doubt() time.Time {
	x := m.current
	if x == nil || m.asleep || m.waiting.IsZero() && !x.suspect() || x.dead() && !m.used() {
		return time.Time{}
	}
	if x.suspect() || x.asked.After(m.waiting) {
		slower := 0
		if x.dead() {
			slower = min((x.missed-tooMissed)/missedAlone+1, 5)
		}
		return x.asked.Add(min(x.patience()<<slower, max(mostDoubt, x.patience())))
	}
	return m.waiting.Add(max(firstDoubt, x.rtt+x.rtt/4))
}

// watch asks for signs of life while traffic waits, and says when there are none.
func (m *Machine) watch() {
	x := m.current
	if x != nil && x.proven && x.dead() && !x.path.Relay() {
		x.proven = false
		if m.used() { // else whoever uses it again finds it again
			m.again()
		}
	}
	due := m.doubt()
	if due.IsZero() || due.After(m.now) {
		return
	}
	m.probe(x, 0)
	// Whoever falls back to the relay shall know then whether it carries.
	if r := m.relay; r != nil && r != x && m.now.Sub(r.asked) >= patienceLeast {
		m.probe(r, 0)
	}
}

func (m *Machine) watchWake(w *soonest) { w.add(m.doubt()) }

// choose settles by which way traffic goes, and reports whether that is another.
func (m *Machine) choose() (changed bool) {
	best := m.current
	if best != nil && !best.usable() {
		best = nil
	}
	for _, x := range m.ways() {
		if x.usable() && (best == nil || x.beats(best)) {
			best = x
		}
	}
	if best == nil { // nothing is known to work: what may work is better than nothing
		best = m.current
		for _, x := range m.ways() {
			if best == nil {
				best = x
			}
		}
	}
	if changed = best != m.current; changed {
		m.current = best
		for _, x := range m.ways() {
			x.better = 0
		}
		if best != nil {
			m.measureSoon(best)
		}
		if !m.waiting.IsZero() {
			m.waiting = m.now
		}
	}
	if m.current != nil && m.current.dead() && m.used() {
		m.silent = true
	}
	return changed
}

// usable reports whether traffic may go by the way.
func (x *way) usable() bool { return x.path.Relay() || x.proven && !x.dead() }

// beats reports whether traffic should leave the way y for x.
func (x *way) beats(y *way) bool {
	switch {
	case x == y:
		return false
	case x.dead() != y.dead():
		return y.dead()
	case x.class != y.class && (x.class == throughRelay || y.class == throughRelay):
		return x.class < y.class // a direct way in doubt is judged in three quarters of a second
	case x.suspect() != y.suspect():
		return y.suspect()
	case x.class != y.class:
		return x.class < y.class
	}
	return x.better >= favoured
}

// favoured is for how many measurements in a row a way must be quicker than the
// current one, so that traffic does not go to and fro.
const favoured = 3

// compare weighs a fresh measurement against the current way.
func (m *Machine) compare(x *way) {
	if c := m.current; c == nil || x == c || x.class != c.class || c.rtt == 0 {
		return
	} else if x.rtt < c.rtt*4/5-time.Millisecond {
		x.better++
	} else {
		x.better = 0
	}
}

// rest lets everything go that was not used for long: NATs will have forgotten it,
// and the relay is where the next packet finds its way at once.
func (m *Machine) rest() {
	if m.asleep || m.now.Before(m.traffic.Add(linger)) {
		return
	}
	m.asleep, m.waiting, m.silent = true, time.Time{}, false
	m.punch = punch{}
	for _, x := range m.ways() {
		x.pending, x.missed, x.next, x.measure = nil, 0, time.Time{}, time.Time{}
		if m.relay != nil {
			x.proven = false
		}
	}
	if m.relay != nil {
		m.current = m.relay
	}
}

func (m *Machine) restWake(w *soonest) {
	if !m.asleep {
		w.add(m.traffic.Add(linger))
	}
}

// measureSoon has the way measured with the next step.
func (m *Machine) measureSoon(x *way) {
	if x.rtt == 0 || x.mtu.unknown() {
		x.measure = m.now
	} else {
		x.measure = m.now.Add(m.jitter(measureEvery))
	}
}

// keep measures what is used, and keeps NATs from forgetting what may be used again.
func (m *Machine) keep() {
	if m.asleep {
		return
	}
	for _, x := range m.ways() {
		due := m.keepDue(x)
		if due.IsZero() || due.After(m.now) {
			continue
		}
		if m.used() {
			every := compareEvery
			size := 0
			if x == m.current {
				every, size = measureEvery, x.mtu.safe()
				if x.mtu.unknown() {
					size = 0
				}
			}
			x.measure = m.now.Add(m.jitter(every))
			m.probe(x, size)
			continue
		}
		m.probe(x, 0)
	}
	if x := m.current; x != nil && m.used() && (x.proven || x.path.Relay()) {
		if size := x.mtu.try(m.now, m.cfg.MaxMTU, x.patience()); size > 0 {
			m.probe(x, size)
		}
	}
}

// last is when a packet last went or came by the way.
func (x *way) last() time.Time {
	if x.heard.After(x.sent) {
		return x.heard
	}
	return x.sent
}

// keepDue is when the way is to be probed though nothing is wrong; zero: never.
func (m *Machine) keepDue(x *way) time.Time {
	switch {
	case m.used() && (x.proven || x.path.Relay() && (x == m.current || x.rtt > 0)):
		return x.measure
	case m.used() || x != m.current || x.path.Relay() || x.suspect():
		return time.Time{}
	}
	return x.last().Add(min(life(m.self.NAT, m.self.Life), life(m.theirs.NAT, m.theirs.Life)))
}

// life is how long a NAT keeps a mapping, by what its owner knows.
func life(n NAT, known time.Duration) time.Duration {
	if n == Open {
		return keepLast
	}
	return min(max(keepFirst, known), keepLast)
}

func (m *Machine) keepWake(w *soonest) {
	if m.asleep {
		return
	}
	if m.used() {
		w.add(m.traffic.Add(awhile)) // then other rules hold
	}
	for _, x := range m.ways() {
		w.add(m.keepDue(x))
	}
	if x := m.current; x != nil && m.used() && (x.proven || x.path.Relay()) {
		w.add(x.mtu.wake())
	}
}
