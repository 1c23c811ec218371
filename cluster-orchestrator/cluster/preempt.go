package cluster

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An urgent instance that fits nowhere may have less urgent ones make way, where
// the operator allows it. They are told to end first; meanwhile what it needs is
// reserved on the node, so that nobody else takes what they leave.

// maxEvictions is on how many nodes room is sought that others have: those that
// the plugin likes best.
const maxEvictions = 500

// preempts has others make way for an instance, on the named nodes or, where none is
// named, on any, and reports whether it waits for them. One whose node is heard goes on
// there meanwhile; an exclusive one could not, and goes when there is room.
func (c *Core) preempts(in *instance, req *sched.Request, nodes ...api.NodeID) bool {
	n := c.nodes[in.Node]
	runs := n != nil && !n.silent
	if runs && in.exclusive() {
		return false
	}
	if in.Reserved == "" {
		k, ok := c.makeWay(in, req, nodes...)
		if !ok {
			return false
		}
		if in.Offered && !in.Strained { // it has a place now
			in.Offered, in.why = false, nil
			c.changed(in)
		}
		if detail := "waits until those have left that are leaving"; !runs {
			if k > 0 {
				detail = fmt.Sprintf("waits until %d less urgent instances have made way", k)
			}
			c.explain(in, api.ReasonNone, detail, nil)
		}
	}
	if n != nil && !runs {
		c.unassign(in, false)
		in.cause = in.Reason
	}
	return true
}

// makeWay has others leave that one of the nodes (none named: of all) where it costs
// least, if there is one, and keeps what they leave for the instance. It reports how
// many.
func (c *Core) makeWay(in *instance, req *sched.Request, nodes ...api.NodeID) (victims int, ok bool) {
	n, lesser := c.wayFor(in, req, nodes...)
	if n == nil {
		return 0, false
	}
	c.reserve(in, n)
	for _, v := range lesser {
		c.preempt(v)
	}
	for _, v := range lesser {
		c.tryPlace(v)
	}
	return len(lesser), true
}

// wayFor is the node on which the fewest and least urgent would have to make way
// for an instance, and who; nil if there is none.
func (c *Core) wayFor(in *instance, req *sched.Request, nodes ...api.NodeID) (best *node, victims []*instance) {
	if !c.mayPreempt(in) || c.vain[in.id()] {
		return nil, nil
	}
	left := c.leftOf(in)
	anyhow := bare(*req)
	cands := c.table.All()
	if len(nodes) > 0 {
		cands = make([]sched.Candidate, len(nodes))
		for i, id := range nodes {
			cands[i] = *c.table.Get(string(id))
		}
	}
	ranked := sched.Place(&anyhow, cands, c.cfg.Plugin, in.seed()).Ranked
	for _, choice := range ranked[:min(len(ranked), maxEvictions)] {
		n := c.nodes[api.NodeID(choice.ID)]
		if n.leaving[in.id()] {
			continue // of an earlier placement of its own
		}
		if v, ok := c.victims(in, n, left); ok && (best == nil || compareVictims(v, victims) < 0) {
			best, victims = n, v
		}
	}
	return best, victims
}

// mayPreempt reports whether there is anybody who would make way for an instance.
func (c *Core) mayPreempt(in *instance) bool {
	return c.cfg.Preempt && c.settled && c.lesser(in.demand.request.Urgency) > 0
}

// lesser is how many placed instances are less urgent.
func (c *Core) lesser(urgency int) (n int) {
	for u := range min(urgency, len(c.placed)) {
		n += c.placed[u]
	}
	return n
}

// victims are the fewest and least urgent instances on a node without which another
// would fit there, and into what is left of the root's share, when those have left
// that are leaving. That may be none; ok is false where it does not help.
func (c *Core) victims(in *instance, n *node, left *api.Resources) (victims []*instance, ok bool) {
	var may []*instance
	for _, v := range n.assigned {
		if v.demand.request.Urgency < in.demand.request.Urgency && !v.ended() && !linked(in, v) {
			may = append(may, v)
		}
	}
	slices.SortFunc(may, func(a, b *instance) int {
		return cmp.Or(
			cmp.Compare(a.demand.request.Urgency, b.demand.request.Urgency),
			cmp.Compare(weightOf(b, n), weightOf(a, n)), // the larger first: then they are few
			cmp.Compare(a.id(), b.id()),
		)
	})
	gone := n.ending()
	if left != nil {
		others := left.Minus(n.sum(gone))
		left = &others
	}
	k := 0
	for ; k < len(may) && !c.roomWithout(in, n, gone, left); k++ {
		gone[may[k].id()] = true
	}
	if !c.roomWithout(in, n, gone, left) {
		return nil, false
	}
	// Some that came early are not needed beside those that came late.
	out := may[:k]
	for i := k - 1; i >= 0; i-- {
		if delete(gone, may[i].id()); !c.roomWithout(in, n, gone, left) {
			gone[may[i].id()] = true
		}
	}
	return slices.DeleteFunc(out, func(v *instance) bool { return !gone[v.id()] }), true
}

// linked reports whether one of two instances is to be near to the other: what it would
// be near to makes no way for it, for without that the node might be too far off.
func linked(a, b *instance) bool {
	names := func(a, b *instance) bool {
		of, to := a.id().Service(), b.id().Service()
		return of != to && slices.ContainsFunc(a.demand.links, func(l sched.Link) bool { return l.Names(of, to) })
	}
	return names(a, b) || names(b, a)
}

// ending is what was told to leave the node and has not yet. What goes on until its
// new placement runs is not among it.
func (n *node) ending() map[api.InstanceID]bool {
	out := make(map[api.InstanceID]bool, len(n.leaving))
	for id := range n.leaving {
		if _, goesOn := n.stays[id]; !goesOn {
			out[id] = true
		}
	}
	return out
}

// sum is what is booked for some.
func (n *node) sum(of map[api.InstanceID]bool) (r api.Resources) {
	for id := range of {
		r = r.Plus(n.booked[id].Room)
	}
	return r
}

// leftOf is what the root's share has left for an instance when those have left that
// are leaving; nil where it does not count.
func (c *Core) leftOf(in *instance) *api.Resources {
	if !c.shares(in) || in.Node != "" {
		return nil
	}
	left := scaled(c.capacity, c.cfg.Offer.share()).Minus(c.used)
	for _, n := range c.nodes {
		if len(n.leaving) > 0 && !n.silent {
			left = left.Plus(n.sum(n.ending()))
		}
	}
	return &left
}

// weightOf is how much of the node an instance has.
func weightOf(in *instance, n *node) float64 {
	k, of := n.booked[in.id()].Room, n.traits.capacity
	return max(float64(k.MilliCPU)/float64(max(of.MilliCPU, 1)), float64(k.MemoryMB)/float64(max(of.MemoryMB, 1)))
}

func compareVictims(a, b []*instance) int {
	sum := func(of []*instance) (n int) {
		for _, v := range of {
			n += v.demand.request.Urgency
		}
		return n
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(sum(a), sum(b)))
}

// roomWithout reports whether an instance would fit on a node, beside all for which
// room is reserved there, and into what others leave of the root's share, if some
// were not there.
func (c *Core) roomWithout(in *instance, n *node, gone map[api.InstanceID]bool, left *api.Resources) bool {
	d, more := &in.demand, n.sum(gone)
	fits := func(free api.Resources) bool { return d.claim.Room.Fits(atLeastZero(free.Plus(more))) }
	if !fits(n.traits.capacity.Minus(n.used)) || left != nil && !fits(*left) {
		return false
	}
	freed := 0
	for id := range gone {
		freed += one(n.booked[id].Address)
	}
	if d.claim.Address && n.full(freed) {
		return false
	}
	for _, p := range d.ports {
		taken := n.published[p]
		for id := range gone {
			if slices.Contains(n.ports[id], p) {
				taken--
			}
		}
		if taken > 0 || n.info.Ports.Refuses(api.HostPort{Port: p.Number, Protocol: p.Protocol}) != "" {
			return false
		}
	}
	if len(d.claim.Devices) == 0 {
		return true
	}
	still := map[api.InstanceID]claim{}
	for id, k := range n.booked {
		if !gone[id] {
			still[id] = k
		}
	}
	devices := n.traits.devices.free(still, n.given)
	return !slices.ContainsFunc(d.claim.Devices, func(w api.Device) bool { return w.Count > devices[w.Name] }) &&
		n.traits.devices.together(d.claim.Devices, devices)
}

// preempt takes an instance off its node for a more urgent one.
func (c *Core) preempt(v *instance) {
	c.unask(v)
	c.unassign(v, true)
	v.Moving, v.Strained, v.Violated, v.cause = false, false, "", api.ReasonPreempted
	if v.State != api.ClusterScheduled {
		v.State = lifecycle.Must(v.State, lifecycle.Replace)
	}
	v.Reason, v.Detail = api.ReasonPreempted, "a more urgent instance takes its place"
	c.changed(v)
}

// reserve keeps what an instance needs on a node free for it.
func (c *Core) reserve(in *instance, n *node) {
	c.unreserve(in)
	in.Reserved = n.info.ID
	c.keepRoom(in, n)
	c.save(in)
	c.refresh(n)
	c.grown[n.info.ID] = true // who was leaving may have left just now
}

// keepRoom books what is reserved, and that its service has one there soon: for what
// spread and apart ask it counts already.
func (c *Core) keepRoom(in *instance, n *node) {
	if n.reserved == nil {
		n.reserved = map[api.InstanceID]*instance{}
	}
	n.reserved[in.id()] = in
	n.book(in.id(), in.demand.claim)
	n.publish(in.id(), in.demand.ports)
	c.services[in.id().Service()].expected[string(n.info.ID)]++
}

// unreserve gives up what is kept free for an instance.
func (c *Core) unreserve(in *instance) {
	if in.Reserved == "" {
		return
	}
	n, at := c.nodes[in.Reserved], string(in.Reserved)
	in.Reserved = ""
	c.save(in)
	s := c.services[in.id().Service()]
	if s.expected[at]--; s.expected[at] == 0 {
		delete(s.expected, at)
	}
	c.leaves(in.id().Service())
	if n == nil {
		return
	}
	delete(n.reserved, in.id())
	n.book(in.id(), claim{})
	n.unpublish(in.id())
	c.refresh(n)
}

// redeem gives instances the room that was reserved for them, where it is free by
// now. Those that would not fit there if all of it were look elsewhere: what else
// they ask of a place has changed.
func (c *Core) redeem(n *node) {
	if n.out() != "" {
		return
	}
	for _, id := range step.Keys(n.reserved) {
		in := n.reserved[id]
		switch {
		case in == nil: // it is gone since, by what became of those before
		case c.spoilt(in, n):
			c.vain[id] = true
			c.unreserve(in)
			c.elsewhere(in)
		case in.exclusive() && c.mustWait(in):
		case c.fits(in, n, c.without(n, id)):
			reason := api.ReasonNone
			switch {
			case in.Moving:
				reason = api.ReasonDrained
			case in.Node != "":
				reason = api.ReasonViolated
			}
			c.goTo(in, n.info.ID, reason, "less urgent instances made way")
		}
	}
}

// spoilt reports whether it is not for want of room that an instance does not fit
// where room is reserved for it.
func (c *Core) spoilt(in *instance, n *node) bool {
	req := bare(c.request(in))
	_, ok := sched.PlaceBest(&req, []sched.Candidate{c.candidate(n, "")}, c.cfg.Plugin, in.seed())
	return !ok && !c.measure(in.demand.users) // who is being measured may be near
}

// bare is a request without what others may make way for.
func bare(req sched.Request) sched.Request {
	req.Needs, req.Devices, req.Ports, req.Address = api.Resources{}, nil, nil, false
	return req
}

// awaitsRoom reports whether an instance waits for what is reserved for it.
func (c *Core) awaitsRoom(in *instance) bool {
	n := c.nodes[in.Reserved]
	spoilt := n != nil && n.out() == "" && c.spoilt(in, n)
	if spoilt {
		c.vain[in.id()] = true
	}
	if n == nil || n.closed() || spoilt {
		c.unreserve(in)
		return false
	}
	c.redeem(n)
	return in.Reserved != ""
}

// lapse has those look elsewhere for which room is reserved on a node that takes
// no work any more.
func (c *Core) lapse(n *node) {
	for _, id := range step.Keys(n.reserved) {
		in := n.reserved[id]
		c.unreserve(in)
		c.elsewhere(in)
	}
}

// elsewhere looks for another place for an instance for which room was kept.
func (c *Core) elsewhere(in *instance) {
	own := c.nodes[in.Node]
	switch {
	case own == nil:
		c.tryPlace(in)
	case in.Moving && !own.silent:
		c.evict(in)
	} // what breaks its SLA is looked at again, and what fell silent is displaced
}
