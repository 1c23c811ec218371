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
	// nearby bounds how far from the origin a peer can say that it is: all that can be
	// measured is nearer.
	nearby = 10 * time.Second
)

// measure is a peer that is measured whether or not it is spoken to.
type measure struct {
	record  api.Peer
	asked   int // how often
	unheard int // how often in a row nothing was heard of it since
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
			m = &measure{}
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
	wait := measureEvery
	switch {
	case m.asked < measureBurst:
		wait = measureEvery / measureBurst
	case m.unheard >= measureBurst:
		wait = min(measureEvery<<min(m.unheard-measureBurst, 10), measureLate)
	}
	m.asked++
	m.unheard++
	// Up to a fifth sooner or later, so that the nodes' measurements do not fall together.
	wait += time.Duration((pairOf(c.self.Key, k)+uint64(m.asked))*0x9e3779b97f4a7c15>>33%uint64(wait*2/5)) - wait/5
	c.timers.Set(timerKey{what: timerMeasure, peer: k}, c.now.Add(wait))
	c.emitLate(ToTunnel, TunnelMeasure{k}) // after it is told of the peer
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
}

// placeEvery bounds how often the node says that it has moved, and placeSoon while
// what it said last is hardly more than a guess: a young coordinate moves with every
// measurement.
const (
	placeEvery = 30 * time.Second
	placeSoon  = 8 * time.Second
	placeGuess = 0.5 // Coordinate.Error
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
	c.coord.now = vivaldi.Update(c.coord.now, *at, in.RTT, pairOf(c.self.Key, in.Key))
	c.emit(ToTunnel, TunnelCoord{c.coord.now})
	wait := placeEvery
	if c.coord.said.Error > placeGuess {
		wait = placeSoon
	}
	if vivaldi.Moved(c.coord.now, c.coord.said, 0.1) && (c.coord.told.IsZero() || c.now.Sub(c.coord.told) >= wait) {
		c.coord.said, c.coord.told = c.coord.now, c.now
		c.link.self = true
		c.saveMeta()
	}
}

// pairOf is a number of chance that is the same for two nodes in every run.
func pairOf(a, b api.PeerKey) uint64 {
	return binary.BigEndian.Uint64(a[:]) ^ binary.BigEndian.Uint64(b[:])
}
