package kernelpath

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
)

const (
	// countInterval is the interval at which the traffic of kernel paths is counted.
	countInterval = time.Second
	// maxMisses is how many consecutive answers may report that nothing arrived before packets take the
	// tunnel. maxUnanswered is how many consecutive counts may find neither traffic nor an answer from
	// the peer.
	maxMisses     = 2
	maxUnanswered = 3
	// firstAvoid is how long packets then take the tunnel. It doubles with each consecutive failure, up
	// to maxAvoid.
	firstAvoid = 30 * time.Second
	maxAvoid   = 15 * time.Minute
)

// proof is the evidence whether a kernel path carries packets.
type proof struct {
	at       time.Time // of the last count; zero: none
	to, from uint64    // bytes sent and received, at that count

	probe uint64 // serial of the TrafficProbe that is not answered yet; 0: none
	sent  uint64 // bytes sent when it was sent

	known       bool   // the peer has answered at least once
	arrived     uint64 // bytes that arrived, in its last answer
	arrivedSent uint64 // bytes sent at the time of that TrafficProbe

	misses, unanswered int
	requested          uint64 // serial of the peer's TrafficProbe that waits for Counted
}

// scheduleCount schedules a count now.
func (m *Machine) scheduleCount() { m.timers.SetEarlier(timer{kind: timerCount}, m.now) }

// count requests the plane's counters, and schedules the next count if there is a kernel path.
func (m *Machine) count() {
	for _, q := range m.peers {
		if q.Path != "" {
			m.timers.Set(timer{kind: timerCount}, m.now.Add(countInterval))
			m.requestCount()
			return
		}
	}
}

func (m *Machine) requestCount() {
	if m.countRequested.IsZero() || m.now.Sub(m.countRequested) >= countInterval {
		m.countRequested = m.now
		m.eff.Count = true
	}
}

// Probed handles a peer's TrafficProbe. The next Counted answers it.
func (m *Machine) Probed(now time.Time, k api.PeerKey, serial uint64) Effects {
	m.now = now
	if q := m.peers[k]; q != nil && q.Accepts.Or(q.withdrawn) != none {
		q.proof.requested = serial
		m.requestCount()
	}
	return m.takeEffects()
}

// Counted stores the bytes that the plane sent to and received from peers by kernel paths. nil: the plane
// could not count.
func (m *Machine) Counted(now time.Time, bytes map[api.PeerKey][2]uint64) Effects {
	m.now, m.countRequested = now, time.Time{}
	if bytes == nil {
		return m.takeEffects()
	}
	for _, k := range m.keys() {
		q := m.peers[k]
		n := bytes[k]
		if w := q.proof.requested; w != 0 {
			q.proof.requested = 0
			m.eff.Orders = append(m.eff.Orders, Order{Key: k, Message: peermsg.Traffic{Serial: w, Bytes: n[1]}})
		}
		if q.Path != "" {
			m.compareCounts(q, n[0], n[1])
		}
	}
	return m.takeEffects()
}

// compareCounts compares the counters with those of the last count, and sends a TrafficProbe if packets
// were sent.
func (m *Machine) compareCounts(q *peer, to, from uint64) {
	p := &q.proof
	if m.now.Sub(p.at) < countInterval*3/4 {
		return // the count was for a peer's TrafficProbe
	}
	first := p.at.IsZero()
	sent, came := !first && to > p.to, !first && from != p.from
	p.at, p.to, p.from = m.now, to, from
	if sent || came {
		m.eff.Orders = append(m.eff.Orders, Order{Key: q.key})
	}
	switch {
	case came:
		p.unanswered = 0
	case sent && p.probe != 0:
		if p.unanswered++; p.unanswered >= maxUnanswered {
			m.avoid(q, "nothing comes back by %s, which is tried again later")
			return
		}
	}
	if first || sent || p.probe != 0 {
		m.probes++
		p.probe, p.sent = m.probes, to
		// If nothing came back, the TrafficProbe may need a new session.
		m.eff.Orders = append(m.eff.Orders, Order{Key: q.key, Message: peermsg.TrafficProbe{Serial: p.probe}, Connect: sent && !came})
	}
}

// Arrived handles a peer's answer to a TrafficProbe.
func (m *Machine) Arrived(now time.Time, k api.PeerKey, a peermsg.Traffic) Effects {
	m.now = now
	q := m.peers[k]
	if q == nil || q.Path == "" || a.Serial == 0 || a.Serial != q.proof.probe {
		return m.takeEffects()
	}
	p := &q.proof
	p.probe, p.unanswered = 0, 0
	if p.known && p.sent == p.arrivedSent {
		return m.takeEffects()
	}
	switch {
	case !p.known || p.sent < p.arrivedSent:
	case a.Bytes == p.arrived:
		p.misses++
	default:
		p.misses, q.failures = 0, 0
	}
	p.known, p.arrived, p.arrivedSent = true, a.Bytes, p.sent
	if p.misses >= maxMisses {
		m.avoid(q, "nothing gets through by %s, which is tried again later")
	}
	return m.takeEffects()
}

// avoid sends packets to the peer through the tunnel for a while. reason has a %s for the path.
func (m *Machine) avoid(q *peer, reason string) {
	q.reason = fmt.Sprintf(reason, q.Path)
	q.avoidUntil = m.now.Add(min(firstAvoid<<min(q.failures, 10), maxAvoid))
	q.failures++
	m.choose(q)
}
