package cluster

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// Each node on the overlay network keeps measuring its way to a few others, so that
// its coordinate is true even while it is idle: to near ones, which tell where it is
// among its neighbours, and to any, which keep the whole from drifting apart (Dabek
// et al., Vivaldi §4.2). They change slowly: a coordinate follows each change.

const (
	measureNear  = 2
	measureAny   = 2
	measureAmong = 64               // of which the near ones are the nearest
	measureEvery = 10 * time.Minute // until a node is given others
	measureSoon  = 5 * time.Second  // after it came, so that those that come with it are known
	// measureTell is between two times that a node is told the same, and later: one
	// that does not believe a record will not do so soon.
	measureTell, measureTellMax = 5 * time.Second, 10 * time.Minute
)

// measured is what one node measures.
type measured struct {
	round uint64
	peers []api.NodeID
	by    map[api.NodeID]bool // those that measure this one

	has    api.Digest // of their records, as the node says
	told   api.Digest // as it was told last,
	toldAt time.Time
	sent   uint64 // by the NetDown of that revision;
	tries  int    // so often
}

// measureSoonest has a node's peers chosen, if they were not.
func (c *Core) measureSoonest(n *node) {
	if key := (timerKey{what: timerPeers, node: n.info.ID}); !c.timers.Has(key) {
		chance := drawsOf("measure", n.info.ID)
		c.timers.Set(key, c.now.Add(measureSoon+chance.within(measureSoon))) // not all at once
	}
}

// choosePeers gives a node others to measure, and has it told.
func (c *Core) choosePeers(n *node) {
	m := &n.measured
	if n.net.self == nil || !n.net.subnet.IsValid() {
		return
	}
	all := c.table.All()
	chance := drawsOf("measure", n.info.ID, m.round)
	c.timers.Set(timerKey{what: timerPeers, node: n.info.ID}, c.now.Add(measureEvery+chance.within(measureEvery/4)))
	m.round++
	var some []*node
	for range 2 * measureAmong {
		o := c.nodes[api.NodeID(all[chance.below(len(all))].ID)]
		if o != n && !o.silent && o.net.self != nil && o.net.subnet.IsValid() && !slices.Contains(some, o) {
			some = append(some, o)
		}
		if len(some) == measureAmong || len(some) == len(all)-1 {
			break
		}
	}
	peers := make([]api.NodeID, 0, measureNear+measureAny)
	for _, o := range some[:min(measureAny, len(some))] {
		peers = append(peers, o.info.ID)
	}
	if some = some[len(peers):]; n.coord != nil {
		some = slices.DeleteFunc(some, func(o *node) bool { return o.coord == nil })
		slices.SortStableFunc(some, func(a, b *node) int {
			return int(vivaldi.Distance(*n.coord, *a.coord) - vivaldi.Distance(*n.coord, *b.coord))
		})
	}
	for _, o := range some[:min(measureNear, len(some))] {
		peers = append(peers, o.info.ID)
	}
	slices.Sort(peers)
	c.setPeers(n, peers)
	c.net.talk[n.info.ID] = true
}

func (c *Core) setPeers(n *node, peers []api.NodeID) {
	for _, id := range n.measured.peers {
		if o := c.nodes[id]; o != nil {
			delete(o.measured.by, n.info.ID)
		}
	}
	for _, id := range peers {
		o := c.nodes[id]
		if o.measured.by == nil {
			o.measured.by = map[api.NodeID]bool{}
		}
		o.measured.by[n.info.ID] = true
	}
	n.measured.peers = peers
}

// within is a part of a time.
func (d *draws) within(t time.Duration) time.Duration {
	return time.Duration(d.below(int(t.Milliseconds()))) * time.Millisecond
}

// measureOf is what the node is to be told that it measures, none among it, and of
// which services it tells what their connections measure; nil if it knows or may have
// been told.
func (c *Core) measureOf(n *node) ([]api.Peer, []api.ServiceID) {
	m := &n.measured
	if m.round == 0 {
		return nil, nil // nothing was chosen in this life: what it has may be good
	}
	out, should := []api.Peer{}, api.Digest(0)
	for _, id := range m.peers {
		if p, ok := c.net.book.Member(id); ok {
			out, should = append(out, p), should.Toggle(p.Digest())
		}
	}
	about := c.asksAbout(n)
	for _, id := range about {
		should = should.Toggle(id.Digest())
	}
	switch {
	case should == m.has:
		m.told, m.tries = should, 0
		return nil, nil
	case should != m.told:
		m.tries = 0
	case n.net.took < m.sent:
		return nil, nil // it is on its way, or lost: the node is asked
	default:
		if again := m.toldAt.Add(min(measureTell<<min(m.tries, 7), measureTellMax)); again.After(c.now) {
			c.timers.SetEarlier(timerKey{what: timerAck, node: n.info.ID}, again)
			return nil, nil
		}
		m.tries++
	}
	m.told, m.toldAt = should, c.now
	return out, about
}

// peerMoved has those told that measure a node which is found elsewhere now.
func (c *Core) peerMoved(n *node) {
	for id := range n.measured.by {
		c.net.talk[id] = true
	}
}

// unmeasured forgets what a node that is gone measured, and has others chosen
// where it was measured.
func (c *Core) unmeasured(n *node) {
	c.timers.Clear(timerKey{what: timerPeers, node: n.info.ID})
	c.setPeers(n, nil)
	for _, id := range step.Keys(n.measured.by) {
		c.timers.SetEarlier(timerKey{what: timerPeers, node: id}, c.now.Add(measureSoon))
	}
}
