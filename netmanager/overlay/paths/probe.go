package paths

import (
	"net/netip"
	"time"
)

// pending is a probe that waits for its reply.
type pending struct {
	token  uint64
	at     time.Time
	size   int  // it was padded to; 0: not
	missed bool // its time is over; a late reply still counts as a sign of life
}

const (
	// patienceLeast is the least time that a reply is given. Three of them make the
	// second within which a dead peer is known.
	patienceLeast = 250 * time.Millisecond
	patienceMost  = 3 * time.Second
	maxPending    = 16
	tooLate       = 10 * time.Second // for a reply to be of use
)

// patience is how long a probe of the way may go unanswered.
func (x *way) patience() time.Duration {
	return min(max(patienceLeast, x.rtt+x.rtt/4+50*time.Millisecond), patienceMost)
}

// suspect reports whether the last probe by the way was missed.
func (x *way) suspect() bool { return x.missed > 0 }

// dead reports whether so many were missed that traffic must not wait for it.
func (x *way) dead() bool { return x.missed >= tooMissed }

// A missed probe weighs less where data came by the way meanwhile: either the
// probe or its reply was lost, or the way carries in one direction only.
const (
	missedAlone = 2
	missedAmong = 1
	tooMissed   = 2*missedAlone + missedAmong // three, of which one may be from before it died
)

func (m *Machine) send(s Send) { m.out.Send = append(m.out.Send, s) }

// probe sends a probe by the way, padded to size bytes with its headers (0: not).
func (m *Machine) probe(x *way, size int) {
	p := pending{token: m.random(), at: m.now, size: size}
	if len(x.pending) == maxPending {
		x.pending = x.pending[1:]
	}
	x.pending = append(x.pending, p)
	x.sent = m.now
	if size == 0 {
		x.asked = m.now
	}
	m.send(Send{Path: x.path, Body: Probe{p.token}.Append(nil), Size: size})
}

// heard notes that something authentic came by a path, and gets to know it. What
// comes by a way does not prove that something gets there: only replies do that.
// Data is taken for one, since it mostly answers data; other messages are not.
func (m *Machine) heard(from Path, data bool) {
	x := m.way(from)
	if x == nil {
		if from.Relay() {
			return // through our relay, from a peer that has none
		}
		if x = m.add(from.Addr, Reflexive); x == nil {
			return
		}
	}
	m.silent = false
	if data {
		x.heard = m.now
		if x == m.current {
			m.waiting = time.Time{}
		}
	}
	if !x.proven && !x.path.Relay() && m.session {
		m.check(x)
	}
}

// check probes a way that the peer uses, at once: our NAT lets its packets in, so
// the reply will come. It costs budget, or a peer could aim us at others.
func (m *Machine) check(x *way) {
	if m.now.Sub(x.sent) >= 50*time.Millisecond && m.budget.take(m.now) {
		m.probe(x, 0)
	}
}

func (m *Machine) answer(from Path, p Probe) {
	if m.replies.take(m.now) {
		r := Reply{Token: p.Token, Seen: from.Addr}
		if m.cfg.Coord != nil {
			r.Coord = m.cfg.Coord()
		}
		m.send(Send{Path: from, Body: r.Append(nil)})
	}
}

// answered proves the way: the token went by it and came back by it. From
// elsewhere it proves nothing: a peer that we cannot reach there would have us
// send to another.
func (m *Machine) answered(from Path, r Reply) {
	x := m.way(from)
	if x == nil {
		return
	}
	for i, p := range x.pending {
		if p.token != r.Token {
			continue
		}
		x.pending = append(x.pending[:i:i], x.pending[i+1:]...)
		x.timed(m.now.Sub(p.at), m.now)
		if !p.missed {
			x.loss -= x.loss / 8
		}
		x.missed, x.heard = 0, m.now
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

// trip is one round trip and when its reply came.
type trip struct {
	rtt time.Duration
	at  time.Time
}

// sampleFor is how long a round trip counts for sample. The peer of an idle node is
// measured less often: each of its round trips counts alone, for a longer memory
// would hide for minutes that the way has become slower.
const sampleFor = 25 * time.Second

// timed takes in a round trip.
func (x *way) timed(d time.Duration, now time.Time) {
	d = max(d, time.Microsecond)
	if x.rtt == 0 {
		x.rtt, x.least = d, d
	}
	x.rtt += (d - x.rtt) / 8
	x.least = min(x.least, d)
	x.recent[x.trips%len(x.recent)] = trip{d, now}
	x.trips++
}

// sample is the least of the round trips within sampleFor, the last 4 at most, or the
// last one: what a busy machine or a queue adds to one is not the distance to the
// peer. 0: there was none.
func (x *way) sample(now time.Time) time.Duration {
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

// expire marks probes that were not answered in time.
func (m *Machine) expire() {
	for _, x := range m.ways() {
		keep := x.pending[:0]
		for _, p := range x.pending {
			if !p.missed && !m.now.Before(p.at.Add(x.patience())) {
				p.missed = true
				m.missed(x, p)
			}
			if m.now.Sub(p.at) < tooLate {
				keep = append(keep, p)
			}
		}
		x.pending = keep
	}
}

func (m *Machine) missed(x *way, p pending) {
	if p.size > x.mtu.safe() {
		x.mtu.failed(p.size, m.now)
		return // it may have been too long; that says nothing of the way
	}
	if !x.proven && !x.path.Relay() && x != m.current {
		return // a round of punching, which counts for itself
	}
	if p.size > 0 { // as long as what passed before: find out which of both it is
		x.loss += (1 - x.loss) / 8
		x.mtu.failed(p.size, m.now)
		x.missed += missedAmong // which a short one that is answered takes back
		return
	}
	x.loss += (1 - x.loss) / 8
	if x.heard.After(p.at.Add(x.patience() / 2)) {
		x.missed += missedAmong
	} else {
		x.missed += missedAlone
	}
}

// plain reports whether no NAT lies between: the peer is at an address that is
// its own, and sees us at one of ours.
func (m *Machine) plain(x *way) bool {
	if x == nil || x.path.Relay() || !x.proven || !m.ownOf(x.path.Addr) {
		return false
	}
	return containsAddr(m.self.Own, x.seen)
}

func containsAddr(list []netip.AddrPort, a netip.AddrPort) bool {
	for _, x := range list {
		if x == a {
			return true
		}
	}
	return false
}
