package paths

import (
	"slices"
	"time"
)

// pending is a probe that waits for its reply.
type pending struct {
	token  uint64
	at     time.Time
	size   int  // padded; 0: not padded
	missed bool // timed out; a late reply still proves the path
}

const (
	// minTimeout is the least timeout of a probe. Three timeouts fit into one second, within which a
	// dead peer must be detected.
	minTimeout = 250 * time.Millisecond
	maxTimeout = 3 * time.Second
	maxPending = 16
	replyMax   = 10 * time.Second // after which replies are ignored
)

// timeout returns the timeout of a probe.
func (x *pathState) timeout() time.Duration {
	return min(max(minTimeout, x.rtt+x.rtt/4+50*time.Millisecond), maxTimeout)
}

// suspect reports whether the last probe was missed.
func (x *pathState) suspect() bool { return x.missed > 0 }

// dead reports whether so many probes were missed that traffic must leave the path.
func (x *pathState) dead() bool { return x.missed >= maxMissed }

// A missed probe has a lower weight if data was received on the path meanwhile: then either the probe or
// its reply was lost, or the path works in one direction only.
const (
	missedAlone = 2
	missedAmong = 1
	maxMissed   = 2*missedAlone + missedAmong // three probes, one of which may be from before the path died
)

func (m *Machine) send(s Send) { m.out.Send = append(m.out.Send, s) }

// probe sends a probe on a path, padded to size bytes with its headers (0: not padded).
func (m *Machine) probe(x *pathState, size int) {
	p := pending{token: m.random(), at: m.now, size: size}
	if len(x.pending) == maxPending {
		x.pending = x.pending[1:]
	}
	x.pending = append(x.pending, p)
	x.sent = m.now
	if size == 0 {
		x.probed = m.now
	}
	m.send(Send{Path: x.path, Body: Probe{p.token}.Append(nil), Size: size})
}

// received records that an authentic packet was received on a path, and adds the path if it is new.
// Receiving does not prove that this node's packets arrive; only replies do. Data counts as a reply,
// because it usually answers data. Other messages do not.
func (m *Machine) received(from Path, data bool) {
	x := m.state(from)
	if x == nil {
		if from.Relay() {
			return // through this node's relay, from a peer without one
		}
		if x = m.add(from.Addr, Reflexive); x == nil {
			return
		}
	}
	m.silent = false
	if data {
		x.received = m.now
		if x == m.current {
			m.waiting = time.Time{}
		}
	}
	if !x.proven && !x.path.Relay() && m.session {
		m.probeSender(x)
	}
}

// probeSender probes at once a path on which the peer sends, because the NATs let its packets in. The budget
// prevents that a peer directs this node's probes at others.
func (m *Machine) probeSender(x *pathState) {
	if m.now.Sub(x.sent) >= 50*time.Millisecond && m.budget.AllowN(m.now, 1) {
		m.probe(x, 0)
	}
}

func (m *Machine) answer(from Path, p Probe) {
	if m.replies.AllowN(m.now, 1) {
		r := Reply{Token: p.Token, Seen: from.Addr}
		if m.cfg.Coord != nil {
			r.Coord = m.cfg.Coord()
		}
		m.send(Send{Path: from, Body: r.Append(nil)})
	}
}

// answered proves a path: the token was sent and returned on it. A reply on another path proves nothing;
// otherwise a peer could direct this node's traffic at others.
func (m *Machine) answered(from Path, r Reply) {
	x := m.state(from)
	if x == nil {
		return
	}
	for i, p := range x.pending {
		if p.token != r.Token {
			continue
		}
		x.pending = append(x.pending[:i:i], x.pending[i+1:]...)
		x.addRoundTrip(m.now.Sub(p.at), m.now)
		if !p.missed {
			x.loss -= x.loss / 8
		}
		x.missed, x.received = 0, m.now
		if x == m.current {
			m.waiting = time.Time{}
		}
		if p.size > 0 {
			x.mtu.passed(p.size)
		}
		x.seen = r.Seen
		if !x.proven {
			x.proven = true
			m.measureSoon(x)
		}
		m.compare(x)
		if x == m.current {
			m.samples++
			m.coord = r.Coord
		}
		return
	}
}

// trip is one round trip and the moment of its reply.
type trip struct {
	rtt time.Duration
	at  time.Time
}

// sampleFor is how long a round trip is used by sample. An idle peer is measured less often, so each of
// its round trips is used alone. Otherwise it would take minutes to notice that the path became slower.
const sampleFor = 25 * time.Second

func (x *pathState) addRoundTrip(d time.Duration, now time.Time) {
	d = max(d, time.Microsecond)
	if x.rtt == 0 {
		x.rtt, x.least = d, d
	}
	x.rtt += (d - x.rtt) / 8
	x.least = min(x.least, d)
	x.recent[x.trips%len(x.recent)] = trip{d, now}
	x.trips++
}

// sample returns the least of the last 4 round trips within sampleFor, or the last one; 0: there was
// none. The least is used because queues and busy machines delay single probes.
func (x *pathState) sample(now time.Time) time.Duration {
	if x.trips == 0 {
		return 0
	}
	least := x.recent[(x.trips-1)%len(x.recent)].rtt
	for _, r := range x.recent[:min(x.trips, len(x.recent))] {
		if now.Sub(r.at) < sampleFor {
			least = min(least, r.rtt)
		}
	}
	return least
}

func (m *Machine) expire() {
	for _, x := range m.all() {
		keep := x.pending[:0]
		for _, p := range x.pending {
			if !p.missed && !m.now.Before(p.at.Add(x.timeout())) {
				p.missed = true
				m.missed(x, p)
			}
			if m.now.Sub(p.at) < replyMax {
				keep = append(keep, p)
			}
		}
		x.pending = keep
	}
}

func (m *Machine) missed(x *pathState, p pending) {
	if p.size > x.mtu.safe() {
		x.mtu.failed(p.size, m.now)
		return // the packet may have been too large
	}
	if !x.proven && !x.path.Relay() && x != m.current {
		return // part of a round of punching
	}
	if p.size > 0 { // a size that passed before: either the size or the path fails
		x.loss += (1 - x.loss) / 8
		x.mtu.failed(p.size, m.now)
		x.missed += missedAmong // a reply to a probe without padding resets it
		return
	}
	x.loss += (1 - x.loss) / 8
	if x.received.After(p.at.Add(x.timeout() / 2)) {
		x.missed += missedAmong
	} else {
		x.missed += missedAlone
	}
}

// noNAT reports whether there is no NAT: each side sees the other at an address of one of its interfaces.
func (m *Machine) noNAT(x *pathState) bool {
	return x != nil && !x.path.Relay() && x.proven && slices.Contains(m.theirs.List, Candidate{Own, x.path.Addr}) &&
		slices.Contains(m.self.Own, x.seen)
}
