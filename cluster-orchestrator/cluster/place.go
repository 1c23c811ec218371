package cluster

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func (c *Core) request(in *instance, avoid ...string) sched.Request {
	req := sched.RequestFor(in.id(), &in.Want.Spec)
	req.Avoid = append(avoid, in.avoid...)
	req.Peers = c.services[in.id().Service()].peers
	return req
}

// explanation says why the instance fits nowhere, without the nodes' names: it is
// for the root, and it is kept, so it must not grow with the cluster.
func (c *Core) explanation(in *instance, req *sched.Request) api.Explanation {
	return sched.Veil(sched.Explain(c.rank(req, in.seed())))
}

func (in *instance) seed() uint64 { return sched.SeedOf(in.id(), in.Epoch) }

// tryPlace places an instance that has no living node. What fits nowhere waits,
// and is handed back to the root.
func (c *Core) tryPlace(in *instance) bool {
	if in.Leaving || in.Withdrawn || in.Bound || in.State == api.Completed {
		c.waiting.Remove(in.id())
		return false
	}
	if in.exclusive() && c.mustWait(in) {
		c.waiting.Add(in.id())
		c.explain(in, api.ReasonNone, "waits until its earlier placement has ended", nil)
		return false
	}
	if in.GivenUp {
		c.handBack(in, api.ReasonTooManyFails, in.Detail, nil)
		return false
	}
	req := c.request(in)
	if best, ok := c.best(&req, in.seed()); ok {
		c.moveTo(in, api.NodeID(best.ID))
		return true
	}
	if len(in.avoid) > 0 {
		// Better a node that it failed on than none.
		in.avoid = nil
		return c.tryPlace(in)
	}
	c.waiting.Add(in.id())
	why := c.explanation(in, &req)
	if !c.settled || c.mustWait(in) {
		c.explain(in, api.ReasonNoCapacity, "waits for room that is about to be known", &why)
		return false
	}
	c.handBack(in, api.ReasonNoCapacity, summary(why), &why)
	return false
}

// mustWait reports whether an earlier placement of the instance may still run on
// a node that is heard.
func (c *Core) mustWait(in *instance) bool { return len(in.Vacancies) > 0 }

func (c *Core) explain(in *instance, r api.Reason, detail string, why *api.Explanation) {
	in.why = why
	if r == api.ReasonNone {
		r = in.Reason
	}
	if in.Reason == r && in.Detail == detail {
		return
	}
	in.Reason, in.Detail = r, detail
	c.changed(in)
}

func summary(why api.Explanation) string {
	if why.Considered == 0 {
		return "the cluster has no nodes"
	}
	s := fmt.Sprintf("0 of %d nodes fit", why.Considered)
	for _, cause := range why.Causes {
		s += fmt.Sprintf(" · %d %s", cause.Count, cause.Constraint)
		if cause.Detail != "" {
			s += " (" + cause.Detail + ")"
		}
	}
	return s
}

// handBack tells the root that it may place the instance elsewhere. For an
// exclusive one this is a promise as well: nothing of it runs here, and it is not
// placed here again until the root offers it anew. Any other keeps its chance: if
// its node returns, or room does, before the root found another cluster, it goes
// on here.
func (c *Core) handBack(in *instance, r api.Reason, detail string, why *api.Explanation) {
	if in.exclusive() {
		if in.Node != "" {
			c.unassign(in, true)
		}
		if c.mustWait(in) {
			return
		}
		in.Bound = true
		c.waiting.Remove(in.id())
	}
	if in.Offered && in.Reason == r && in.Detail == detail {
		return
	}
	in.why, in.Offered = why, true
	in.Reason, in.Detail = r, detail
	c.changed(in)
}

// moveTo gives the instance to a node, under a new epoch.
func (c *Core) moveTo(in *instance, id api.NodeID) {
	if in.Node != "" {
		c.unassign(in, true)
	}
	if in.State != api.ClusterScheduled {
		in.State = lifecycle.Must(in.State, lifecycle.Replace)
	}
	in.Epoch++
	in.Node, in.Offered, in.Moving, in.GivenUp, in.why = id, false, false, false, nil
	in.Restarts, in.ExitCode, in.Address, in.Ready = 0, nil, netip.Addr{}, false
	n := c.nodes[id]
	n.leave(in.id())
	in.Vacancies = slices.DeleteFunc(in.Vacancies, func(v vacancy) bool { return v.Node == id })
	n.take(in)
	in.Before = n.booked[in.id()]
	c.countPeer(in, +1)
	c.touch(n)
	n.put[in.id()] = true
	delete(n.drop, in.id())
	c.waiting.Remove(in.id())
	c.become(in, lifecycle.NodeChosen, api.ReasonNone, "")
	c.refresh(n)
}

// unassign takes the instance off its node. Where it may still run there, its
// room stays held until the node says otherwise.
func (c *Core) unassign(in *instance, held bool) {
	n := c.nodes[in.Node]
	c.countPeer(in, -1)
	held = held && !n.silent
	room := n.booked[in.id()]
	n.lose(in, held)
	in.Node = ""
	c.touch(n)
	n.drop[in.id()] = true
	delete(n.put, in.id())
	if n.silent {
		n.must = n.gen
	}
	if held {
		in.Vacancies = append(in.Vacancies, vacancy{Node: n.info.ID, Gen: n.gen, claim: room})
	}
	c.refresh(n)
	c.save(in)
}

// escalate moves an instance that keeps failing on its node to another, as long
// as there is one that it was not tried on; then the root may look elsewhere.
func (c *Core) escalate(in *instance) {
	if in.Leaving || in.Withdrawn {
		return
	}
	if !slices.Contains(in.avoid, string(in.Node)) {
		in.avoid = append(in.avoid, string(in.Node))
	}
	req := c.request(in)
	best, ok := c.best(&req, in.seed())
	switch {
	case !ok && !in.exclusive() && !in.Offered:
		// It stays, and its node goes on trying, unless the root finds a better place.
		in.Offered = true
		why := c.explanation(in, &req)
		in.why = &why
		c.changed(in)
	case !ok && in.exclusive():
		// It must have ended here before it may begin in another cluster.
		in.GivenUp = true
		c.stopFirst(in, api.ReasonTooManyFails)
	case !ok:
	case in.exclusive():
		c.stopFirst(in, api.ReasonTooManyFails)
	default:
		c.moveTo(in, api.NodeID(best.ID))
	}
}

// stopFirst takes an exclusive instance off a living node; it is placed again
// when the node has confirmed that nothing of it is left.
func (c *Core) stopFirst(in *instance, r api.Reason) {
	c.unassign(in, true)
	in.Moving = false
	if in.State != api.ClusterScheduled {
		in.State = lifecycle.Must(in.State, lifecycle.Replace)
	}
	in.Reason, in.Detail = r, "waits until its earlier placement has ended"
	c.changed(in)
	c.waiting.Add(in.id())
	if !c.mustWait(in) {
		c.tryPlace(in)
	}
}

// evict moves an instance off a node that is to be empty, as soon as another has
// room; until then it goes on where it is.
func (c *Core) evict(in *instance) {
	if in.State == api.Completed || in.Leaving || in.Withdrawn {
		return
	}
	req := c.request(in, string(in.Node))
	best, ok := c.best(&req, in.seed())
	switch {
	case ok && in.exclusive():
		c.stopFirst(in, api.ReasonDrained)
	case ok:
		c.moveOff(in, api.NodeID(best.ID))
	default:
		in.Moving = true
		c.waiting.Add(in.id())
		if !in.exclusive() {
			why := c.explanation(in, &req)
			in.why, in.Offered = &why, true
		}
		c.changed(in)
	}
}

func (c *Core) evictAll(n *node) {
	for _, in := range n.sorted() {
		c.evict(in)
	}
}

// retryWaiting gives what waits the room that this step found.
func (c *Core) retryWaiting() {
	for len(c.grown) > 0 {
		cands := make([]sched.Candidate, 0, len(c.grown))
		for _, id := range step.Keys(c.grown) {
			cands = append(cands, *c.table.Get(string(id)))
		}
		clear(c.grown)
		for _, id := range c.waiting.List() {
			in := c.instances[id]
			if in == nil {
				c.waiting.Remove(id)
				continue
			}
			c.retry(in, cands)
			// Placing takes room; what is left of the grown nodes is what counts.
			for i := range cands {
				cands[i] = *c.table.Get(cands[i].ID)
			}
		}
	}
}

func (c *Core) retry(in *instance, grown []sched.Candidate) {
	if in.Bound || in.Leaving || in.Withdrawn || in.State == api.Completed {
		c.waiting.Remove(in.id())
		return
	}
	if in.exclusive() && c.mustWait(in) {
		return
	}
	req := c.request(in)
	if in.Node != "" {
		req.Avoid = append(req.Avoid, string(in.Node))
	}
	best, ok := sched.PlaceBest(&req, grown, c.cfg.Plugin, in.seed())
	switch {
	case !ok:
	case in.Moving && in.exclusive() && in.Node != "":
		c.stopFirst(in, api.ReasonDrained)
	case in.Moving && in.Node != "":
		c.moveOff(in, api.NodeID(best.ID))
	default:
		c.moveTo(in, api.NodeID(best.ID))
	}
}
