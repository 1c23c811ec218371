package overlay

import (
	"cmp"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
)

// link is what is to be said to the cluster, and what it has confirmed.
type link struct {
	up      bool
	lost    time.Time // since when it is not
	seq     uint64    // of the last NetUp
	rev     uint64    // of the last NetDown that was taken in
	fresh   bool      // nothing was taken in since the link came up: no order is known
	whole   bool
	self    bool
	say     bool // Held, if nothing else
	adds    map[api.Want]struct{}
	drops   map[api.Want]struct{}
	unacked uint64 // the last Seq that has to be answered; 0: all are
	tries   int
	doubts  int // how often in a row the digests differed

	gaps     bool // some are news
	gapsTold time.Time

	run *interest.Run[interest.Key] // through what is held, while the cluster tells it part by part
}

const (
	ackMin, ackMax = time.Second, 30 * time.Second
	heldMax        = time.Minute
	// renewDefault is for clusters that do not say how long a want lasts.
	renewDefault = 100 * time.Second
)

func (l *link) add(w api.Want) {
	if l.adds == nil {
		l.adds = map[api.Want]struct{}{}
	}
	delete(l.drops, w)
	l.adds[w] = struct{}{}
}

func (l *link) drop(w api.Want) {
	if l.drops == nil {
		l.drops = map[api.Want]struct{}{}
	}
	delete(l.adds, w)
	l.drops[w] = struct{}{}
}

// describe notes what the node says of itself.
func (c *Core) describe(s Self) {
	first := !c.described
	old := c.self
	c.self, c.described = s, true
	c.link.self = c.link.self || first || !equalJSON(old.NetSelf, s.NetSelf)
	for _, k := range sortedKeys(c.peers) {
		q := c.peers[k]
		if first || old.Key != s.Key { // what is said of ourselves is no peer's
			c.reclaim(q)
		}
		c.choosePath(q)
	}
}

func (c *Core) linked(up bool) {
	was := c.link.up
	c.link.up = up
	if was && !up {
		c.link.lost = c.now
	}
	if !up || was {
		return
	}
	// What was lost with the old connection shows in the digest. What comes on a new
	// one is in order by itself.
	c.link.say, c.link.fresh = true, true
	if c.link.unacked != 0 {
		c.link.whole, c.link.self = true, true
	}
	c.resetIdle()
	for _, id := range sortedKeys(c.asking) {
		for _, k := range c.inOrder(c.asking[id].wants) {
			if w := c.wants[k]; c.outcome(w) == unanswered {
				w.tries = 0
				c.ask(w)
			}
		}
	}
}

// renewal is how often the wants are named again: thrice in the time they last.
func (c *Core) renewal() time.Duration {
	if c.lease == nil || c.lease.Interest <= 0 {
		return renewDefault
	}
	return max(c.lease.Interest/3, time.Second)
}

// report says to the cluster what there is to say.
func (c *Core) report() {
	l := &c.link
	// Instead of more changes than there can be wants, all wants are said: while nobody
	// hears, changes could become any number.
	if len(l.adds)+len(l.drops) > c.cfg.MaxWants {
		l.whole = true
		clear(l.adds)
		clear(l.drops)
	}
	gaps := l.gaps && c.now.Sub(l.gapsTold) >= tellEvery
	if !l.up || !c.described || c.boot == 0 || !l.whole && !l.self && !l.say && !gaps && len(l.adds)+len(l.drops) == 0 {
		return
	}
	l.seq++
	up := api.NetUp{Boot: c.boot, Seq: l.seq, Held: c.held, Rev: l.rev}
	for _, m := range c.measure {
		up.Measure = up.Measure.Toggle(m.record.Digest())
	}
	for id := range c.gaps {
		up.Measure = up.Measure.Toggle(id.Digest())
	}
	up.Between = c.tellGaps(l.whole && l.self) // as after a loss
	if c.lease != nil {
		up.Lease, up.Subnet = c.lease.Digest(), c.lease.Subnet
	}
	if l.self || l.seq == 1 {
		self, coord := c.self.NetSelf, c.coord.said
		self.Coord = &coord
		up.Self = &self
	}
	if l.whole || l.seq == 1 {
		up.Whole = true
		for k := range c.wants {
			up.Add = append(up.Add, k)
		}
	} else {
		for k := range l.adds {
			up.Add = append(up.Add, k)
		}
		for k := range l.drops {
			up.Drop = append(up.Drop, k)
		}
	}
	sortWants(up.Add)
	sortWants(up.Drop)
	if up.Whole || up.Self != nil || len(up.Add)+len(up.Drop) > 0 {
		l.unacked = l.seq
		key := timerKey{what: timerAck}
		c.timers.SetEarlier(key, c.now.Add(min(ackMin<<min(l.tries, 10), ackMax)))
	}
	if up.Whole {
		c.timers.Clear(timerKey{what: timerRenew})
		if len(c.wants) > 0 {
			c.timers.Set(timerKey{what: timerRenew}, c.now.Add(c.renewal()))
		}
	}
	l.whole, l.self, l.say = false, false, false
	clear(l.adds)
	clear(l.drops)
	// It stands on nothing that this step saves but the boot, which Start does.
	c.emit(api.ToCluster, up)
}

func (c *Core) unanswered() {
	if c.link.unacked != 0 {
		c.link.tries++
		c.link.whole, c.link.self = true, true
	}
}

func (c *Core) acknowledged(seq uint64) {
	if l := &c.link; l.unacked != 0 && seq >= l.unacked {
		l.unacked, l.tries = 0, 0
		c.timers.Clear(timerKey{what: timerAck})
	}
}

// compare sees whether both hold the same, once the cluster has taken in all that
// was said. A difference is settled by a whole NetUp, less and less often where
// that does not help.
func (c *Core) compare(d api.NetDown) {
	l := &c.link
	if d.Held == 0 || d.Boot != c.boot || d.Seq != l.seq || len(l.adds)+len(l.drops) > 0 {
		return
	}
	key := timerKey{what: timerHeld}
	if d.Held == c.held {
		l.doubts = 0
		c.timers.Clear(key)
		return
	}
	if !c.timers.Has(key) {
		c.timers.Set(key, c.now.Add(min(ackMin<<min(l.doubts, 10), heldMax)))
		l.doubts++
	}
}

func sortWants(w []api.Want) {
	slices.SortFunc(w, func(a, b api.Want) int {
		return cmp.Or(a.Address.Compare(b.Address), cmp.Compare(a.Service, b.Service), cmp.Compare(a.For, b.For))
	})
}
