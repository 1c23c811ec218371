package overlay

import (
	"encoding/binary"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// The node knows where it is in the latency space by the round trips to whom it
// speaks to, and to a few peers that the cluster has named for that.

const (
	// A peer that is new is measured measureBurst times within measureEvery, for a
	// young coordinate is moved far by each; then once in that time.
	measureBurst = 8
	measureEvery = 30 * time.Second
	// measureLate is between two measurements of a peer that does not answer, to which
	// it comes by doubling: two machines that have just begun may be too busy at first.
	measureLate = 4 * time.Minute
	// maxMeasure is how many peers are measured at most, whatever the cluster says.
	maxMeasure = 64
	// measureRest is between two measurements of a peer whose round trip does not change,
	// more than measureEvery: what is saved pays for more measurements when it does, so
	// that their number never exceeds one per measureEvery after the burst. saveMost
	// bounds what is saved.
	measureRest = 36 * time.Second
	saveMost    = 6 * measureEvery
	// measureSoon is how soon a peer is measured again whose round trip changed, once to
	// confirm it and measureFollow times to follow it.
	measureSoon   = 2 * time.Second
	measureFollow = 3
	// measureGrown is how many times a peer that is new is measured within measureEvery
	// by a node that knows where it is; what it saves of the burst it may use later.
	measureGrown = 3
	// changedFor is how long a change of a peer's round trip counts among those of the
	// others: where most changed, it is this node's own connection.
	changedFor = time.Minute
	// grown is Coordinate.Error below which a node knows where it is.
	grown = 1.0
	// nearby bounds how far from the origin a peer can say that it is: all that can be
	// measured is nearer.
	nearby = 10 * time.Second
)

// measure is a peer that is measured whether or not it is spoken to.
type measure struct {
	record  api.Peer
	asked   int // how often
	unheard int // how often in a row nothing was heard of it since

	next    time.Time     // when it is measured next
	saved   time.Duration // by which measurements may come early
	rtt     time.Duration // the last one that counted; 0: none
	doubt   bool          // the last one differed, and is to be confirmed
	follow  int           // measurements that follow a change are left
	changed time.Time     // when it last changed
}

// setMeasure has these peers measured from now on, and no others.
func (c *Core) setMeasure(list []api.Peer) {
	old := c.measure
	c.measure = map[api.PeerKey]*measure{}
	for _, p := range list {
		if p.Key == c.self.Key || c.measure[p.Key] != nil || len(c.measure) == maxMeasure {
			continue
		}
		c.refer(p, 1)
		m := old[p.Key]
		if m == nil {
			m = &measure{next: c.now}
			if c.coord.now.Error < grown {
				m.asked, m.saved = measureBurst-measureGrown, (measureBurst-measureGrown)*measureEvery
			}
			c.timers.Set(timerKey{what: timerMeasure, peer: p.Key}, c.now)
		}
		m.record = c.shared(p)
		c.measure[p.Key] = m
	}
	for _, k := range sortedKeys(old) {
		c.unrefer(k, 1)
		if c.measure[k] == nil {
			c.timers.Clear(timerKey{what: timerMeasure, peer: k})
		}
	}
}

// measureAgain has a peer measured, and says when next.
func (c *Core) measureAgain(k api.PeerKey) {
	m := c.measure[k]
	wait, spread := measureRest, time.Duration(12)
	switch {
	case m.asked < measureBurst:
		wait, spread = measureEvery/measureBurst, 5
	case m.unheard >= measureBurst:
		wait = min(measureEvery<<min(m.unheard-measureBurst, 10), measureLate)
	}
	m.asked++
	m.unheard++
	// A little sooner or later, so that the nodes' measurements do not fall together.
	wait += time.Duration((pairOf(c.self.Key, k)+uint64(m.asked))*0x9e3779b97f4a7c15>>33%uint64(wait*2/spread)) - wait/spread
	if m.asked > measureBurst {
		m.saved = min(m.saved+max(wait-measureEvery, 0), max(m.saved, saveMost))
	}
	m.next = c.now.Add(wait)
	c.timers.Set(timerKey{what: timerMeasure, peer: k}, m.next)
	c.emitLate(ToTunnel, TunnelMeasure{k}) // after it is told of the peer
}

// hurry has a peer measured within measureSoon, and reports whether it is: only what
// was saved by measuring it less often is spent on that.
func (c *Core) hurry(k api.PeerKey) bool {
	m := c.measure[k]
	early := c.now.Add(measureSoon)
	cost := m.next.Sub(early)
	if cost <= 0 {
		return true
	}
	if cost > m.saved {
		return false
	}
	m.saved -= cost
	m.next = early
	c.timers.Set(timerKey{what: timerMeasure, peer: k}, early)
	return true
}

// differs reports whether a round trip is another than before, by more than jitter.
func differs(rtt, was time.Duration) bool {
	return was > 0 && (rtt-was).Abs() > max(was/4, 2*time.Millisecond)
}

// follows takes in a round trip of a measured peer, and reports whether it counts: one
// that differs does when it was confirmed, or cannot be confirmed soon.
func (c *Core) follows(k api.PeerKey, m *measure, rtt time.Duration) bool {
	changed := differs(rtt, m.rtt) && c.coord.now.Error < grown
	if changed && !m.doubt && c.hurry(k) {
		m.doubt = true
		return false
	}
	m.rtt, m.doubt = rtt, false
	switch {
	case changed:
		m.changed, m.follow = c.now, measureFollow
		for _, other := range sortedKeys(c.measure) {
			if c.now.Sub(c.measure[other].changed) >= changedFor {
				c.hurry(other)
			}
		}
	case m.follow > 0:
		m.follow--
	}
	if m.follow > 0 {
		c.hurry(k)
	}
	return true
}

// displaced reports whether most measured peers' round trips changed of late: this
// node's own connection is another than before.
func (c *Core) displaced() bool {
	n := 0
	for _, m := range c.measure {
		if !m.changed.IsZero() && c.now.Sub(m.changed) < changedFor {
			n++
		}
	}
	return 2*n > len(c.measure)
}

// usedEvery is between two measurements of a peer that packets go to by a kernel
// path: as often as the tunnel measures the path in use, which sees nothing of them.
const usedEvery = 10 * time.Second

// measureUsed has a peer measured whose packets the tunnel does not see.
func (c *Core) measureUsed(q *peer) {
	if c.now.Sub(q.probed) >= usedEvery && c.now.Sub(q.measured) >= usedEvery/2 {
		q.probed = c.now
		c.emit(ToTunnel, TunnelMeasure{q.record.Key})
	}
}

// place is where the node is in the latency space, and where it said that it is.
type place struct {
	now, said api.Coordinate
	told      time.Time
	saved     time.Duration // by which the node may say early that it has moved
}

// placeEvery bounds how often the node says that it has moved, and placeSoon while
// what it said last is hardly more than a guess: a young coordinate moves with every
// measurement.
const (
	placeEvery = 30 * time.Second
	placeSoon  = 8 * time.Second
	placeGuess = 0.5 // Coordinate.Error
	placeSave  = 4 * placeEvery
)

// measured moves the own coordinate by a round trip to a peer. Where the peer is
// now, it said with the answer; a record says where it was.
func (c *Core) measured(in Measured) {
	q := c.peers[in.Key]
	if q == nil || in.RTT <= 0 {
		return
	}
	q.measured = c.now
	if m := c.measure[in.Key]; m != nil {
		m.unheard = 0
	}
	for _, p := range q.record.Subnets { // who is spoken to is wanted, though it be by tunnels alone
		for k := range c.pointing[p.Addr()] {
			if k.For == "" {
				c.wants[k].used = c.now
			}
		}
	}
	at := in.Coord
	if at == nil {
		at = q.record.Coord
	}
	if !vivaldi.Valid(at) || vivaldi.Distance(vivaldi.New(), *at) > nearby {
		return
	}
	m, steps := c.measure[in.Key], 1
	if m != nil && !c.follows(in.Key, m, in.RTT) {
		return
	}
	if m != nil && m.follow > 0 && c.displaced() {
		// Where this node was says little of where it is now.
		c.coord.now.Error = max(c.coord.now.Error, displacedError)
		steps = displacedSteps
	}
	for range steps {
		c.coord.now = vivaldi.Update(c.coord.now, *at, in.RTT, pairOf(c.self.Key, in.Key))
	}
	c.emit(ToTunnel, TunnelCoord{c.coord.now})
	c.sayPlace()
}

// A node whose own connection changed moves by several steps of Vivaldi with each
// round trip that follows, and believes its peers more than itself.
const (
	displacedError = 0.45
	displacedSteps = 3
)

// sayPlace has the cluster told where the node is, if it has moved: once per
// placeEvery, and earlier by as much as was saved before.
func (c *Core) sayPlace() {
	p := &c.coord
	if !vivaldi.Moved(p.now, p.said, 0.1) {
		return
	}
	wait := placeEvery
	if p.said.Error > placeGuess {
		wait = placeSoon
	}
	since := c.now.Sub(p.told)
	switch early := wait - since; {
	case p.told.IsZero():
	case early <= 0:
		p.saved = min(p.saved-early, placeSave)
	case since < placeSoon || early > p.saved:
		c.timers.SetEarlier(timerKey{what: timerPlace}, p.told.Add(max(placeSoon, wait-p.saved)))
		return
	default:
		p.saved -= early
	}
	p.said, p.told = p.now, c.now
	c.link.self = true
	c.saveMeta()
}

// pairOf is a number of chance that is the same for two nodes in every run.
func pairOf(a, b api.PeerKey) uint64 {
	return binary.BigEndian.Uint64(a[:]) ^ binary.BigEndian.Uint64(b[:])
}
