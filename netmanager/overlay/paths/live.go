package paths

import "time"

const (
	// A path is measured until activeFor after the last traffic, and dropped after linger.
	activeFor = 30 * time.Second
	linger    = 5 * time.Minute

	// firstCheck is how long data may be unanswered before the path is probed. With three probes after
	// it, each with minTimeout, a dead peer is detected within one second.
	firstCheck = 50 * time.Millisecond
	maxCheck   = 5 * time.Second // between probes to a silent peer

	// minKeepAlive is the keep-alive interval that suits any NAT (mappings commonly expire after 30 s or
	// more). maxKeepAlive is the longest interval.
	minKeepAlive = 20 * time.Second
	maxKeepAlive = 110 * time.Second

	measureEvery = 10 * time.Second // of the current path while it is used
	compareEvery = 30 * time.Second // of the others
)

// wakeUp records traffic with the peer.
func (m *Machine) wakeUp() {
	m.traffic = m.now
	if !m.asleep {
		return
	}
	m.asleep = false
	m.restartPunching()
	if m.current != nil {
		m.measureSoon(m.current)
	}
}

func (m *Machine) inUse() bool { return !m.asleep && m.now.Sub(m.traffic) < activeFor }

// checkDue returns when to probe the current path because data is unanswered; zero: never.
func (m *Machine) checkDue() time.Time {
	x := m.current
	if x == nil || m.asleep || m.waiting.IsZero() && !x.suspect() || x.dead() && !m.inUse() {
		return time.Time{}
	}
	if x.suspect() || x.probed.After(m.waiting) {
		slower := 0
		if x.dead() {
			slower = min((x.missed-maxMissed)/missedAlone+1, 5)
		}
		return x.probed.Add(min(x.timeout()<<slower, max(maxCheck, x.timeout())))
	}
	return m.waiting.Add(max(firstCheck, x.rtt+x.rtt/4))
}

// checkCurrent probes the current path while data is unanswered.
func (m *Machine) checkCurrent() {
	x := m.current
	if x != nil && x.proven && x.dead() && !x.path.Relay() {
		x.proven = false
		if m.inUse() { // otherwise the next use searches again
			m.restartPunching()
		}
	}
	due := m.checkDue()
	if due.IsZero() || due.After(m.now) {
		return
	}
	m.probe(x, 0)
	// Probe the relay too: a fallback to it must know whether it works.
	if r := m.relay; r != nil && r != x && m.now.Sub(r.probed) >= minTimeout {
		m.probe(r, 0)
	}
}

// choose chooses the path for traffic, and reports whether it changed.
func (m *Machine) choose() (changed bool) {
	best := m.current
	if best != nil && !best.usable() {
		best = nil
	}
	for _, x := range m.all() {
		if x.usable() && (best == nil || x.beats(best)) {
			best = x
		}
	}
	if best == nil { // no path is known to work: keep the current one, or use the first
		best = m.current
		for _, x := range m.all() {
			if best == nil {
				best = x
			}
		}
	}
	if changed = best != m.current; changed {
		m.current = best
		for _, x := range m.all() {
			x.better = 0
		}
		if best != nil {
			m.measureSoon(best)
		}
		if !m.waiting.IsZero() {
			m.waiting = m.now
		}
	}
	if m.current != nil && m.current.dead() && m.inUse() {
		m.relayFailed()
		m.silent = true
	}
	return changed
}

// relayFailed begins to search for a direct path at once when the relay stops answering: the wait after
// failed rounds, which is up to minutes, assumes that traffic has another path.
func (m *Machine) relayFailed() {
	if !m.silent && m.current.path.Relay() && m.now.Sub(m.punch.began) >= backoff[0] {
		m.restartPunching()
	}
}

// usable reports whether traffic may take the path.
func (x *pathState) usable() bool { return x.path.Relay() || x.proven && !x.dead() }

func (x *pathState) beats(y *pathState) bool {
	switch {
	case x == y:
		return false
	case x.dead() != y.dead():
		return y.dead()
	case x.class != y.class && (x.class == throughRelay || y.class == throughRelay):
		return x.class < y.class // a suspect direct path is dead or works again within 0.75 s
	case x.suspect() != y.suspect():
		return y.suspect()
	case x.class != y.class:
		return x.class < y.class
	}
	return x.better >= minBetter
}

// minBetter is for how many consecutive measurements a path must be faster than the current one, so that
// traffic does not alternate.
const minBetter = 3

func (m *Machine) compare(x *pathState) {
	if c := m.current; c == nil || x == c || x.class != c.class || c.rtt == 0 {
		return
	} else if x.rtt < c.rtt*4/5-time.Millisecond {
		x.better++
	} else {
		x.better = 0
	}
}

// sleepIfIdle drops direct paths after linger without traffic. Their NAT mappings have probably expired,
// and the next packet reaches the peer at once through the relay.
func (m *Machine) sleepIfIdle() {
	if m.asleep || m.now.Before(m.traffic.Add(linger)) {
		return
	}
	m.asleep, m.waiting, m.silent = true, time.Time{}, false
	m.punch = punch{}
	for _, x := range m.all() {
		x.pending, x.missed, x.next, x.measure = nil, 0, time.Time{}, time.Time{}
		if m.relay != nil {
			x.proven = false
		}
	}
	if m.relay != nil {
		m.current = m.relay
	}
}

// measureSoon schedules the next measurement of a path: now if it was never measured.
func (m *Machine) measureSoon(x *pathState) {
	if x.rtt == 0 || x.mtu.unknown() {
		x.measure = m.now
	} else {
		x.measure = m.now.Add(m.jitter(measureEvery))
	}
}

// sendMeasurements measures paths in use, and sends keep-alives for NAT mappings.
func (m *Machine) sendMeasurements() {
	if m.asleep {
		return
	}
	for _, x := range m.all() {
		due := m.measurementDue(x)
		if due.IsZero() || due.After(m.now) {
			continue
		}
		size, every := 0, compareEvery
		if x == m.current {
			every = measureEvery
			if m.inUse() && !x.mtu.unknown() {
				size = x.mtu.safe()
			}
		}
		if m.inUse() {
			x.measure = m.now.Add(m.jitter(every))
		}
		m.probe(x, size)
	}
	if x := m.current; x != nil && m.inUse() && (x.proven || x.path.Relay()) {
		if size := x.mtu.try(m.now, m.cfg.MaxMTU, x.timeout()); size > 0 {
			m.probe(x, size)
		}
	}
}

// last returns when a packet was last sent or received on the path.
func (x *pathState) last() time.Time {
	if x.received.After(x.sent) {
		return x.received
	}
	return x.sent
}

// measurementDue returns when to measure a path or keep it alive; zero: never.
func (m *Machine) measurementDue(x *pathState) time.Time {
	switch {
	case m.inUse() && (x.proven || x.path.Relay() && (x == m.current || x.rtt > 0)):
		return x.measure
	case m.inUse() || x != m.current || x.path.Relay() || x.suspect():
		return time.Time{}
	}
	return x.last().Add(min(keepAliveInterval(m.self.NAT, m.self.Lifetime), keepAliveInterval(m.theirs.NAT, m.theirs.Lifetime)))
}

// keepAliveInterval returns the keep-alive interval for a NAT. known is its mapping lifetime; 0: not known.
func keepAliveInterval(n NAT, known time.Duration) time.Duration {
	if n == Open {
		return maxKeepAlive
	}
	return min(max(minKeepAlive, known), maxKeepAlive)
}

func (m *Machine) measurementWake(w *soonest) {
	if m.asleep {
		return
	}
	if m.inUse() {
		w.add(m.traffic.Add(activeFor)) // measurements end then
	}
	for _, x := range m.all() {
		w.add(m.measurementDue(x))
	}
	if x := m.current; x != nil && m.inUse() && (x.proven || x.path.Relay()) {
		w.add(x.mtu.next)
	}
}
