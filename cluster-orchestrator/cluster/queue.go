package cluster

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// inTurn lists what waits: the most urgent first, and of those the longest.
func (c *Core) inTurn() []api.InstanceID {
	ids := c.waiting.List()
	var by [urgencies + 1][]api.InstanceID // 0: they are gone
	for _, id := range ids {
		u := min(max(c.urgency(id), -1), urgencies-1) + 1
		by[u] = append(by[u], id)
	}
	slices.Reverse(by[:])
	return slices.Concat(by[:]...)
}

func (c *Core) urgency(id api.InstanceID) int {
	if in := c.instances[id]; in != nil {
		return in.demand.request.Urgency
	}
	return -1
}

// retryWaiting gives what waits the room that this step found.
func (c *Core) retryWaiting() {
	for len(c.grown)+len(c.vacated)+len(c.lapsed)+len(c.left) > 0 || c.widened {
		lapsed := c.lapsed
		c.lapsed = nil
		for _, id := range lapsed {
			if n := c.nodes[id]; n != nil && n.closed() {
				c.lapse(n)
			}
		}
		ids := step.Keys(c.grown)
		clear(c.grown)
		vacated := c.vacated
		c.vacated = map[api.InstanceID]bool{}
		seen, tried := c.version, map[misfit]bool{}
		cands := make([]sched.Candidate, len(ids))
		for i, id := range ids {
			cands[i] = *c.table.Get(string(id))
		}
		for _, id := range ids {
			c.redeem(c.nodes[id])
		}
		for _, id := range c.inTurn() {
			in := c.instances[id]
			if in == nil {
				c.waiting.Remove(id)
				continue
			}
			if vacated[id] { // any node may have room, not only those that have more
				c.searched(in)
				continue
			}
			kind := misfit{in.id().Service(), in.Want.SpecRev, c.version}
			if in.likeSiblings() && tried[kind] && !c.shares(in) {
				continue
			}
			// Placing takes room; what is left of the grown nodes is what counts.
			if seen != c.version {
				seen = c.version
				for i := range cands {
					cands[i] = *c.table.Get(cands[i].ID)
				}
			}
			c.retry(in, cands)
			tried[kind] = tried[kind] || in.likeSiblings() && in.asked == "" && c.waiting.Has(id)
		}
		if c.cfg.Preempt {
			c.retryUrgent(ids)
		}
		if len(c.left) > 0 {
			c.retryKeptOut()
		}
		if c.widened {
			c.widened = false
			c.retryBeyond()
		}
	}
}

// retryUrgent has others make way for those that still wait, on the nodes where there
// is more room for them than before: on any other it was of no use when they came.
func (c *Core) retryUrgent(nodes []api.NodeID) {
	if len(nodes) == 0 {
		return
	}
	tried := map[misfit]bool{}
	for _, id := range c.inTurn() {
		in := c.instances[id]
		switch {
		case in == nil:
			continue
		case !c.mayPreempt(in):
			return // nor may those after it, who are less urgent
		case in.Bound, in.Leaving, in.Withdrawn, in.GivenUp, in.ended(),
			in.asked != "", in.Reserved != "", in.exclusive() && c.mustWait(in):
			continue
		}
		kind := misfit{service: in.id().Service(), rev: in.Want.SpecRev}
		if in.likeSiblings() && tried[kind] {
			continue
		}
		var own []string
		if in.Node != "" {
			own = []string{string(in.Node)}
		}
		req := c.request(in, own...)
		tried[kind] = !c.preempts(in, &req, nodes...) && in.likeSiblings()
	}
}

// retryKeptOut goes on with those that waited because of where others were that
// are there no more: on any node of the same domain there may be room.
func (c *Core) retryKeptOut() {
	kept := map[api.ServiceID]bool{}
	for _, ids := range c.left {
		for _, id := range ids {
			kept[id] = true
		}
	}
	clear(c.left)
	if len(kept) == 0 {
		return
	}
	var none misfit
	for _, id := range c.inTurn() {
		if in := c.instances[id]; in != nil && kept[id.Service()] && !none.like(c, in) {
			c.searched(in)
			none.note(c, in)
		}
	}
}

// misfit is what was tried last and fits nowhere: while no candidate changes, what
// asks for the same need not be tried.
type misfit struct {
	service api.ServiceID
	rev     api.Revision
	version uint64 // of the table
}

func (m *misfit) note(c *Core, in *instance) {
	if *m = (misfit{}); c.settled && in.likeSiblings() && c.waiting.Has(in.id()) {
		*m = misfit{in.id().Service(), in.Want.SpecRev, c.version}
	}
}

func (m *misfit) like(c *Core, in *instance) bool {
	return in.likeSiblings() && *m == misfit{in.id().Service(), in.Want.SpecRev, c.version}
}

// likeSiblings reports whether where the instance fits hangs on nothing that is
// its own.
func (in *instance) likeSiblings() bool {
	return in.Node == "" && in.Reserved == "" && len(in.avoid)+len(in.Vacancies)+len(in.Want.Targets) == 0
}

// retryBeyond goes on with those that went beyond the root's share and do so no
// more. Any node may have had room for them all the time. What may not be placed
// here again unasked, the root is told of at once: it can ask now.
func (c *Core) retryBeyond() {
	ids := step.Keys(c.beyond)
	slices.SortStableFunc(ids, func(a, b api.InstanceID) int { return cmp.Compare(c.urgency(b), c.urgency(a)) })
	for _, id := range ids {
		in := c.instances[id]
		if in == nil || in.Node != "" || in.Leaving || in.Withdrawn {
			delete(c.beyond, id)
			continue
		}
		if c.overShare(in) == nil {
			delete(c.beyond, id)
			c.root.due = true
			c.tryPlace(in)
		}
	}
}

// retry places what waits on one of some nodes, if it fits there.
func (c *Core) retry(in *instance, grown []sched.Candidate) {
	if in.Bound || in.Leaving || in.Withdrawn || in.ended() {
		c.waiting.Remove(in.id())
		return
	}
	if in.asked != "" || in.exclusive() && c.mustWait(in) {
		return
	}
	if lost := c.nodes[in.Node]; in.stays() && (lost == nil || lost.silent) && c.returns(in) {
		return
	}
	if !slices.ContainsFunc(grown, func(cand sched.Candidate) bool {
		return cand.Out == "" && in.demand.claim.Room.Fits(cand.Free.Max(api.Resources{}))
	}) {
		return // most that wait are too large for what was freed
	}
	if in.Node == "" && c.beyondShare(in) != nil {
		c.beyond[in.id()] = true // since it came: it waits for that as well now
		return
	}
	if in.Node == "" && c.tooLarge(in) != nil {
		return
	}
	req := c.request(in)
	if in.Node != "" {
		req.Avoid = append(req.Avoid, string(in.Node))
	}
	best, ok := sched.PlaceBest(&req, grown, c.cfg.Plugin, in.seed())
	switch {
	case !ok || !c.together(&req, best.ID):
	case in.Moving && in.exclusive() && in.Node != "":
		c.stopFirst(in, api.ReasonDrained)
	case in.Moving && in.Node != "":
		c.decide(in, &req, api.NodeID(best.ID), api.ReasonDrained)
	default:
		c.decide(in, &req, api.NodeID(best.ID), in.cause)
	}
}
