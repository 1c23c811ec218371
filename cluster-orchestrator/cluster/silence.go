package cluster

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/rollcall"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
)

// nodeWill notes that a node's connection ended. It may be back in a moment, so
// it only gets no new work until it is heard again.
func (c *Core) nodeWill(id api.NodeID) {
	if n := c.nodes[id]; n != nil && !n.suspect {
		n.suspect = true
		c.refresh(n)
	}
}

// back takes a node as alive again.
func (c *Core) back(n *node) {
	if n.heard && !n.silent && !n.suspect {
		return
	}
	first, was := !n.heard, n.silent
	n.heard, n.silent, n.suspect = true, false, false
	if was {
		c.silent--
		c.timers.Set(timerKey{what: timerDead, node: n.info.ID}, c.now.Add(c.dead()-rollcall.Lead))
	}
	if was || first {
		c.netBack(n)
	}
	if was {
		c.nodeNetChanged(n)
	}
	if was || first { // it may have fallen silent in an earlier life of ours
		c.reclaim(n)
	}
	c.refresh(n)
	if was && n.draining {
		c.evictAll(n)
	}
}

// reclaim takes a returning node's instances as its own again where they were
// not placed elsewhere meanwhile, and holds room for those that were.
func (c *Core) reclaim(n *node) {
	for _, in := range n.sorted() {
		if in.State == api.ClusterScheduled {
			c.waiting.Remove(in.id())
			in.Offered = false
			c.unask(in)
			c.unreserve(in)
			c.become(in, lifecycle.NodeChosen, api.ReasonNone, "its node is back")
			if o, ok := n.observed[in.id()]; ok && o.Epoch == in.Epoch {
				c.observed(n, in, o)
			}
		}
	}
	for _, id := range step.Keys(n.observed) {
		c.holdStranger(n, id)
	}
}

// checkSilence looks whether the node was heard since the timer was set.
func (c *Core) checkSilence(n *node) {
	if due := n.lastAlive.Add(c.dead()); due.After(c.now) {
		if ask := due.Add(-rollcall.Lead); ask.After(c.now) {
			due = ask
		} else if len(n.assigned) > 0 {
			c.callRoll()
		}
		c.timers.Set(timerKey{what: timerDead, node: n.info.ID}, due)
		return
	}
	if n.silent {
		return
	}
	n.silent, n.silentAt = true, c.now
	n.synced, n.complete = false, false // it may return with what it never told of
	c.netSilent(n)
	c.silent++
	overdue := c.suspectLate()
	c.refresh(n)
	leaving := step.Keys(n.leaving)
	for _, id := range leaving {
		if n.leave(id) {
			c.touch(n)
			n.drop[id] = true
		}
	}
	if len(leaving) > 0 {
		c.mustHold(n)
	}
	for _, id := range leaving {
		n.release(id)
		if in := c.instances[id]; in != nil {
			c.dropVacancy(in, n.info.ID)
		}
	}
	c.refresh(n)
	c.lost(n, overdue)
}

// callRoll asks every node that could take work for an immediate sign of life: the fault
// that silenced one node may have cut off others, which look alive until their next beat
// is overdue.
func (c *Core) callRoll() {
	if !c.roll.Call(c.now) {
		return
	}
	for _, id := range step.Keys(c.nodes) {
		if n := c.nodes[id]; n.answers && n.out() == "" {
			c.emit(id.Addr(), api.Lease{Boot: n.boot, Gen: n.gen, Answer: true})
		}
	}
}

// overdueNode reports whether the node's next sign of life should have come by now.
func (c *Core) overdueNode(n *node) bool {
	return n.lastAlive.Before(c.now.Add(-c.timing().Beat * 3 / 2))
}

// suspectLate gives no new work to nodes whose sign of life is overdue, or that did not
// answer the roll call: they may be cut off as well. The next sign of life clears them.
// It returns how many are overdue.
func (c *Core) suspectLate() int {
	overdue := 0
	for _, id := range step.Keys(c.nodes) {
		n := c.nodes[id]
		if !n.heard || n.silent {
			continue
		}
		late := c.overdueNode(n)
		if late {
			overdue++
		}
		if late || n.answers && c.roll.Missed(n.lastAlive, c.now) {
			c.doubtNode(n)
		}
	}
	return overdue
}

// doubtNode gives the node no new work until its next sign of life.
func (c *Core) doubtNode(n *node) {
	if !n.suspect {
		n.suspect = true
		c.refresh(n)
	}
}

// answersSoon reports whether there is a node that takes no work only because it did not
// answer the roll call in time, while its next beat is not overdue.
func (c *Core) answersSoon() bool {
	for _, n := range c.nodes {
		if n.suspect && n.heard && !n.silent && n.answers && !c.overdueNode(n) {
			return true
		}
	}
	return false
}

// acceptWithin is the time in which a node must acknowledge the desired set with an
// instance that was lost elsewhere. A node that does not may be cut off as well.
const acceptWithin = 500 * time.Millisecond

// awaitAcceptance sets a timer to check a placement after a node's loss. An exclusive
// instance is not placed elsewhere before its node is dead: the node may have accepted it.
func (c *Core) awaitAcceptance(in *instance, reason api.Reason) {
	key := timerKey{what: timerAccept, instance: in.id()}
	if reason == api.ReasonNodeLost && !in.exclusive() {
		c.timers.Set(key, c.now.Add(acceptWithin))
	} else {
		c.timers.Clear(key)
	}
}

// unaccepted places an instance on another node if its own did not acknowledge it in
// time. The first node drops the instance if it turns out to be alive.
func (c *Core) unaccepted(in *instance) {
	n := c.nodes[in.Node]
	if n == nil || n.silent || n.ack >= in.given || in.State != api.NodeScheduled || in.Leaving || in.Withdrawn {
		return
	}
	c.doubtNode(n)
	if req, best, ok := c.find(in, string(in.Node)); ok {
		c.decide(in, &req, api.NodeID(best.ID), api.ReasonNodeLost)
	}
}

// lost handles a node that fell silent. When half of a cluster falls silent at
// once, the fault is more likely ours: wait for another dead time, then place
// again at a pace.
func (c *Core) lost(n *node, overdue int) {
	doubt := c.doubtsItself(overdue)
	for _, in := range n.sorted() {
		if in.ended() {
			continue
		}
		if in.State != api.ClusterScheduled {
			c.become(in, lifecycle.NodeLost, api.ReasonNodeLost, lostDetail)
		}
		if doubt {
			c.held = append(c.held, in.id())
			continue
		}
		c.displace(in)
	}
	if doubt && len(c.held) > 0 && !c.timers.Has(timerKey{what: timerPace}) {
		c.timers.Set(timerKey{what: timerPace}, c.now.Add(c.dead()))
	}
}

// doubtsItself reports whether half of the nodes are silent since less than a dead
// time, or are overdue and about to be. Nodes that are silent for longer, and nodes
// that have returned, say nothing about this cluster's own connection.
func (c *Core) doubtsItself(overdue int) bool {
	since, lately := c.now.Add(-c.dead()), 0
	for _, n := range c.nodes {
		if n.silent && !n.silentAt.Before(since) {
			lately++
		}
	}
	heard := len(c.nodes) - c.silent + lately
	return heard >= 4 && 2*(lately+overdue) >= heard
}

// The pace at which the instances of many nodes that fell silent are placed again.
const (
	paceEvery = 500 * time.Millisecond
	paceCount = 20
)

func (c *Core) pace() {
	for i := 0; i < paceCount && len(c.held) > 0; {
		id := c.held[0]
		c.held = c.held[1:]
		in := c.instances[id]
		if in == nil || in.Reason != api.ReasonNodeLost || in.State != api.ClusterScheduled || in.Leaving {
			continue // its node is back, or nobody wants it any more
		}
		c.displace(in)
		i++
	}
	if len(c.held) > 0 {
		c.timers.Set(timerKey{what: timerPace}, c.now.Add(paceEvery))
	}
}

// displace places an instance of a silent node elsewhere. Where nothing else
// fits, a non-exclusive one stays with its node, which may return.
func (c *Core) displace(in *instance) {
	if in.Node == "" {
		c.tryPlace(in)
		return
	}
	req, best, ok := c.find(in, string(in.Node))
	if ok {
		c.decide(in, &req, api.NodeID(best.ID), api.ReasonNodeLost)
		return
	}
	if c.makesDo(in, &req) {
		return
	}
	if c.answersSoon() {
		c.held = append(c.held, in.id())
		c.timers.SetEarlier(timerKey{what: timerPace}, c.now.Add(c.timing().Beat))
		return
	}
	why := c.explanation(in, &req, false)
	c.handBack(in, api.ReasonNodeLost, in.Detail+"; "+summary(why), &why)
}
