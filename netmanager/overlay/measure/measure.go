// Package measure keeps a node's measurements: the round trips to the peers that its cluster names, and
// the node's coordinate in the latency space that results from them (Machine), and the round trips
// between services that TCP observes (Services). It does no I/O: the core passes measurements, and
// carries out the Effects.
//
//	m := measure.New()
//	m.SetPeers(now, records)
//	eff := m.Expire(now)                       // eff.Measure: the peers to measure
//	eff = m.Measured(now, key, rtt, coordinate) // eff.Moved: send m.Coordinate() to peers
package measure

import (
	"encoding/binary"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

const (
	// burst is how often a new peer is measured within interval, because each measurement moves an
	// uncertain coordinate far. After that a peer is measured at most once per interval on average.
	burst    = 8
	interval = 30 * time.Second
	// burstLocated replaces burst if the node's own coordinate is reliable. The other measurements become
	// credit.
	burstLocated = 3
	// maxInterval bounds the interval at which a peer that does not answer is measured. It doubles up to
	// that.
	maxInterval = 4 * time.Minute
	// maxPeers bounds the measured peers. The cluster may name more.
	maxPeers = 64
	// stableInterval is the interval for a peer whose round trip does not change. The time that it saves,
	// compared with interval, becomes credit up to maxCredit, and pays for additional measurements after
	// a change. On average there is never more than one measurement per interval.
	stableInterval = 36 * time.Second
	maxCredit      = 6 * interval
	// confirmAfter is the wait before a peer whose round trip changed is measured again: once to confirm the
	// change, and followUps times afterwards.
	confirmAfter = 2 * time.Second
	followUps    = 3
	// changeWindow is how long a changed round trip counts as recent (see displaced).
	changeWindow = time.Minute
	// maxReliableError is the Coordinate.Error below which a coordinate is reliable.
	maxReliableError = 1.0
	// maxDistance bounds the distance of a peer's coordinate from the origin.
	maxDistance = 10 * time.Second

	// A displaced node takes displacedSteps Vivaldi steps per round trip, and raises the error of its
	// coordinate to displacedError at least, so that it follows its peers.
	displacedError = 0.45
	displacedSteps = 3
)

// A node reports its coordinate to its cluster once per reportInterval, or once per youngInterval while
// the reported coordinate has an error above youngError. Time without a report becomes credit for earlier
// reports, up to maxReportCredit.
const (
	reportInterval  = 30 * time.Second
	youngInterval   = 8 * time.Second
	youngError      = 0.5
	maxReportCredit = 4 * reportInterval
)

// Effects lists what the owner of a Machine has to do.
type Effects struct {
	Measure []api.PeerKey // measure the round trip to these peers now
	Moved   bool          // Coordinate changed: peers that measure this node need it
	Report  bool          // Reported changed: save it and report it to the cluster
}

// Machine schedules the measurements of the peers that the cluster named, and keeps the node's
// coordinate.
type Machine struct {
	self     api.PeerKey
	peers    map[api.PeerKey]*peer
	digest   api.Digest
	own      api.Coordinate
	reported api.Coordinate
	at       time.Time     // of the last report; zero: none in this process
	credit   time.Duration // how much earlier the next report may be
	timers   step.Timers[timer]
}

// timer: measure the peer or, with report set, report the coordinate.
type timer struct {
	peer   api.PeerKey
	report bool
}

// peer is a peer that is measured even without traffic.
type peer struct {
	requests   int           // measurements requested
	unanswered int           // measurements since the last answer
	next       time.Time     // of the next measurement
	credit     time.Duration // how much earlier measurements may be
	rtt        time.Duration // last accepted round trip; 0: none
	unsure     bool          // the last round trip differed and has to be confirmed
	followUps  int           // measurements left after a change
	changed    time.Time     // of the last change of rtt
}

// New returns a machine at the origin of the latency space without peers.
func New() *Machine {
	return &Machine{peers: map[api.PeerKey]*peer{}, own: vivaldi.New(), reported: vivaldi.New()}
}

// Restore sets the coordinate that an earlier process reported, if it is valid.
func (m *Machine) Restore(c api.Coordinate) {
	if vivaldi.Valid(&c) {
		m.own, m.reported = c, c
	}
}

// SetSelf sets the node's own key, which is never measured.
func (m *Machine) SetSelf(k api.PeerKey) { m.self = k }

// Coordinate returns the node's present coordinate.
func (m *Machine) Coordinate() api.Coordinate { return m.own }

// Reported returns the coordinate that was last reported to the cluster.
func (m *Machine) Reported() api.Coordinate { return m.reported }

// Digest returns the combined digest of the records of the measured peers.
func (m *Machine) Digest() api.Digest { return m.digest }

// Next returns when Expire has to be called; zero: never.
func (m *Machine) Next() time.Time { return m.timers.Next() }

// Peers lists the measured peers in order.
func (m *Machine) Peers() []api.PeerKey {
	return sorted.Peers(m.peers)
}

// SetPeers replaces the measured peers. It returns the accepted records, and the keys of all peers that
// were measured before.
func (m *Machine) SetPeers(now time.Time, records []api.Peer) (accepted []api.Peer, before []api.PeerKey) {
	before = m.Peers()
	old := m.peers
	m.peers, m.digest = map[api.PeerKey]*peer{}, 0
	for _, r := range records {
		if r.Key == m.self || m.peers[r.Key] != nil || len(m.peers) == maxPeers {
			continue
		}
		p := old[r.Key]
		if p == nil {
			p = &peer{next: now}
			if m.reliable() {
				p.requests, p.credit = burst-burstLocated, (burst-burstLocated)*interval
			}
			m.timers.Set(timer{peer: r.Key}, now)
		}
		m.peers[r.Key] = p
		m.digest = m.digest.Toggle(r.Digest())
		accepted = append(accepted, r)
	}
	for _, k := range before {
		if m.peers[k] == nil {
			m.timers.Clear(timer{peer: k})
		}
	}
	return accepted, before
}

// Expire handles the first timer that is due.
func (m *Machine) Expire(now time.Time) (eff Effects) {
	switch t, ok := m.timers.Pop(now); {
	case !ok:
	case t.report:
		eff.Report = m.report(now)
	default:
		m.schedule(now, t.peer, m.peers[t.peer])
		eff.Measure = []api.PeerKey{t.peer}
	}
	return eff
}

// schedule counts a measurement that is due and schedules the next one.
func (m *Machine) schedule(now time.Time, k api.PeerKey, p *peer) {
	wait, spread := stableInterval, time.Duration(12)
	switch {
	case p.requests < burst:
		wait, spread = interval/burst, 5
	case p.unanswered >= burst:
		wait = min(interval<<min(p.unanswered-burst, 10), maxInterval)
	}
	p.requests++
	p.unanswered++
	// A deterministic jitter spreads the measurements of different nodes.
	wait += time.Duration((seed(m.self, k)+uint64(p.requests))*0x9e3779b97f4a7c15>>33%uint64(wait*2/spread)) - wait/spread
	if p.requests > burst {
		p.credit = min(p.credit+max(wait-interval, 0), max(p.credit, maxCredit))
	}
	p.next = now.Add(wait)
	m.timers.Set(timer{peer: k}, p.next)
}

// measureEarly moves the next measurement of a peer to confirmAfter from now. It returns false if the
// peer's credit is too small.
func (m *Machine) measureEarly(now time.Time, k api.PeerKey) bool {
	p, early := m.peers[k], now.Add(confirmAfter)
	cost := p.next.Sub(early)
	if cost <= 0 {
		return true
	}
	if cost > p.credit {
		return false
	}
	p.credit -= cost
	p.next = early
	m.timers.Set(timer{peer: k}, early)
	return true
}

// reliable reports whether the node's coordinate is reliable.
func (m *Machine) reliable() bool { return m.own.Error < maxReliableError }

// differs reports whether two round trips differ by more than the usual jitter.
func differs(rtt, was time.Duration) bool {
	return was > 0 && (rtt-was).Abs() > max(was/4, 2*time.Millisecond)
}

// accept reports whether to use a round trip of a measured peer. One that differs from the last is used
// if the next measurement confirms it, or if there is no credit for an early confirmation.
func (m *Machine) accept(now time.Time, k api.PeerKey, p *peer, rtt time.Duration) bool {
	changed := differs(rtt, p.rtt) && m.reliable()
	if changed && !p.unsure && m.measureEarly(now, k) {
		p.unsure = true
		return false
	}
	p.rtt, p.unsure = rtt, false
	switch {
	case changed:
		p.changed, p.followUps = now, followUps
		for _, other := range m.Peers() {
			if now.Sub(m.peers[other].changed) >= changeWindow {
				m.measureEarly(now, other)
			}
		}
	case p.followUps > 0:
		p.followUps--
	}
	if p.followUps > 0 {
		m.measureEarly(now, k)
	}
	return true
}

// displaced reports whether the round trips of most measured peers changed within changeWindow. Then the
// connection of this node changed, not those of its peers.
func (m *Machine) displaced(now time.Time) bool {
	n := 0
	for _, p := range m.peers {
		if !p.changed.IsZero() && now.Sub(p.changed) < changeWindow {
			n++
		}
	}
	return 2*n > len(m.peers)
}

// Measured applies a round trip to any known peer. at is the peer's coordinate at that time, or nil.
func (m *Machine) Measured(now time.Time, k api.PeerKey, rtt time.Duration, at *api.Coordinate) (eff Effects) {
	p := m.peers[k]
	if p != nil {
		p.unanswered = 0
	}
	if !vivaldi.Valid(at) || vivaldi.Distance(vivaldi.New(), *at) > maxDistance || p != nil && !m.accept(now, k, p, rtt) {
		return eff
	}
	steps := 1
	if p != nil && p.followUps > 0 && m.displaced(now) {
		m.own.Error = max(m.own.Error, displacedError)
		steps = displacedSteps
	}
	for range steps {
		m.own = vivaldi.Update(m.own, *at, rtt, seed(m.self, k))
	}
	return Effects{Moved: true, Report: m.report(now)}
}

// report reports whether to report the coordinate now: the node moved and the rate allows it. Otherwise
// it schedules the report.
func (m *Machine) report(now time.Time) bool {
	if !vivaldi.Moved(m.own, m.reported, 0.1) {
		return false
	}
	wait := reportInterval
	if m.reported.Error > youngError {
		wait = youngInterval
	}
	since := now.Sub(m.at)
	switch early := wait - since; {
	case m.at.IsZero():
	case early <= 0:
		m.credit = min(m.credit-early, maxReportCredit)
	case since < youngInterval || early > m.credit:
		m.timers.SetEarlier(timer{report: true}, m.at.Add(max(youngInterval, wait-m.credit)))
		return false
	default:
		m.credit -= early
	}
	m.reported, m.at = m.own, now
	return true
}

// seed returns a pseudo-random number that is the same for two nodes in every run.
func seed(a, b api.PeerKey) uint64 {
	return binary.BigEndian.Uint64(a[:]) ^ binary.BigEndian.Uint64(b[:])
}
