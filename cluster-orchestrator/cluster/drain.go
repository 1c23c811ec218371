package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// drain cordons a node and moves its instances elsewhere. Instances that fit nowhere
// else keep running there. With force they are stopped, and wait for room in this
// cluster and at the root.
func (c *Core) drain(id api.NodeID, force bool) error {
	n := c.nodes[id]
	if n == nil {
		return c.noNode(id)
	}
	n.cordoned, n.draining = true, true
	c.nodeNetChanged(n)
	c.saveNode(n)
	c.refresh(n)
	if n.silent {
		return nil // its instances are being placed elsewhere already
	}
	c.evictAll(n)
	if !force {
		return nil
	}
	for _, in := range n.sorted() {
		if !in.ended() && !in.Leaving && !in.Withdrawn {
			c.stopFirst(in, api.ReasonDrained)
		}
	}
	for _, i := range step.Keys(n.stays) {
		if in := c.instances[i]; in != nil {
			c.breakOff(in)
		}
	}
	return nil
}

// remaining returns the instances that a drained node still has, and why.
func (c *Core) remaining(n *node) (out []api.Remaining) {
	for _, in := range n.sorted() {
		if len(out) == api.MostRemaining {
			return out
		}
		if in.ended() || in.Leaving || in.Withdrawn {
			continue
		}
		r := api.Remaining{Instance: in.id(), State: in.State}
		switch {
		case n.silent:
			r.Why = "the node is silent, so it is not known whether it runs"
		case in.asked != "":
			r.Why = "the scheduler " + c.cfg.Asks + " is asked where it should go"
		case in.Reserved != "":
			r.Why = "waits until others have left the node where room is kept for it"
		default:
			req := c.request(in, string(n.info.ID))
			why := sched.Explain(c.rank(&req, in.seed()))
			if r.Stuck = !slices.ContainsFunc(why.Causes, func(x api.Cause) bool { return x.Constraint == sched.Fits }); r.Stuck {
				r.Why = "fits on no other node: " + summary(why)
			} else {
				r.Why = "is about to move"
			}
		}
		out = append(out, r)
	}
	for _, id := range step.Keys(n.leaving) {
		if len(out) == api.MostRemaining {
			break
		}
		r := api.Remaining{Instance: id, State: n.observed[id].State, Why: "is being stopped"}
		if _, goesOn := n.stays[id]; goesOn {
			r.Why = "goes on until its new placement runs"
		} else if api.Ended(r.State, n.observed[id].Reason) {
			continue
		}
		out = append(out, r)
	}
	if !n.silent || !n.purging {
		return out
	}
	for _, id := range step.Keys(n.observed) { // it may have been placed elsewhere since
		o := n.observed[id]
		if len(out) == api.MostRemaining {
			break
		}
		if n.assigned[id] == nil && !n.leaving[id] && !api.Ended(o.State, o.Reason) {
			out = append(out, api.Remaining{Instance: id, State: o.State, Why: "ran there when the node was last heard"})
		}
	}
	return out
}
