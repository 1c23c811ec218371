package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Nodes lists the cluster's nodes in the order of their ids, without Remaining.
func (c *Core) Nodes() []api.Node {
	out := make([]api.Node, 0, len(c.nodes))
	for _, id := range step.Keys(c.nodes) {
		out = append(out, c.viewNode(c.nodes[id]))
	}
	return out
}

// Node is one node, if there is such.
func (c *Core) Node(id api.NodeID) (api.Node, bool) {
	n := c.nodes[id]
	if n == nil {
		return api.Node{}, false
	}
	v := c.viewNode(n)
	if n.draining {
		v.Remaining = c.remaining(n)
	}
	return v, true
}

func (c *Core) viewNode(n *node) api.Node {
	var reserved api.Resources
	for id := range n.reserved {
		reserved = reserved.Plus(n.booked[id].Room)
	}
	v := api.Node{
		NodeInfo: n.info, Cluster: c.cfg.ID, Status: api.NodeReady, Allocated: n.used.Minus(reserved), Reserved: reserved, Instances: len(n.assigned),
		CPUUsed: int(n.cpu), MemUsed: int(n.mem), Joined: n.joined,
		Subnet: n.net.subnet, Coord: n.coord, Caps: n.caps.ordered, Capped: n.caps.above,
	}
	switch {
	case n.silent:
		v.Status = api.NodeSilent
	case !n.heard:
		v.Status = api.NodeJoining
	case n.draining:
		v.Status = api.NodeDraining
	case n.cordoned:
		v.Status = api.NodeCordoned
	}
	if n.heard {
		v.Heard = c.clock.Real(n.lastAlive)
	}
	v.Purging, v.PurgeError = n.purging, n.failing
	return v
}

// Instances lists the cluster's instances, with their nodes, in the order of their ids.
func (c *Core) Instances() []api.Instance {
	out := make([]api.Instance, 0, len(c.instances))
	for _, id := range step.Keys(c.instances) {
		in, _ := c.Instance(id)
		out = append(out, in)
	}
	return out
}

// Instance is one instance, if the cluster has it.
func (c *Core) Instance(id api.InstanceID) (api.Instance, bool) {
	in := c.instances[id]
	if in == nil {
		return api.Instance{}, false
	}
	o := in.view()
	var devices []string
	if n := c.nodes[in.Node]; n != nil {
		devices = n.given(id)
	}
	return api.Instance{
		ID: id, Service: id.Service(), Number: id.Number(), State: o.State, Reason: o.Reason, Detail: o.Detail,
		Cluster: c.cfg.ID, Node: in.Node, Epoch: in.Epoch, Restarts: in.Restarts, Failures: in.Failures, ExitCode: in.ExitCode,
		Spec: in.Want.SpecRev, Leaving: in.Leaving || in.Withdrawn, Address: in.Address,
		Violated: o.Violated, Devices: devices,
	}, true
}

// Why explains, node by node, where an instance could be placed now, and first of all
// what holds it where it would fit. ok is false for an instance that the cluster does
// not have.
func (c *Core) Why(id api.InstanceID) (ex api.Explanation, ok bool) {
	in := c.instances[id]
	if in == nil {
		return api.Explanation{}, false
	}
	req := c.request(in)
	res := c.rank(&req, in.seed())
	if in.Node == "" && in.until.After(c.now) {
		loosest := req.Loosest(!in.placing().linkedAway())
		res = sched.SaySearching(res, c.rank(&loosest, in.seed()), c.clock.Real(in.until))
	}
	if n := c.nodes[in.Node]; n != nil { // it is not in its own way
		res = c.rankOwn(&req, res, n, in)
	}
	return sched.Explain(held(res, in.Reserved, c.holds(in))), true
}

// What holds an instance where it would fit, as an explanation names it beside the
// constraints of package sched.
const (
	ConstraintShare    = "share"     // it goes beyond Offer.Share
	ConstraintBound    = "bound"     // it was handed back, and the root alone may offer it again
	ConstraintEarlier  = "earlier"   // it must not run twice, and an earlier placement may run
	ConstraintReserved = "reserved"  // room is kept for it until those have left that are leaving
	ConstraintAsked    = "scheduler" // the scheduler outside is asked
)

// holds is what an instance without a node waits for, beside a node that it fits on.
func (c *Core) holds(in *instance) *api.Rejection {
	switch {
	case in.Node != "" || in.Leaving || in.Withdrawn || in.ended():
	case in.Bound:
		return &api.Rejection{Constraint: ConstraintBound, Need: "an offer of the root's", Have: "none since it was handed back"}
	case in.exclusive() && c.mustWait(in):
		return &api.Rejection{Constraint: ConstraintEarlier, Need: "its earlier placement ended", Have: "no word of that yet"}
	case in.asked != "":
		return &api.Rejection{Constraint: ConstraintAsked, Need: "an answer of " + c.cfg.Asks, Have: "none yet"}
	case in.Reserved != "":
		return &api.Rejection{Constraint: ConstraintReserved, Need: "those gone who make way", Have: "some there still"}
	case c.tooLarge(in) != nil:
		return c.tooLarge(in)
	default:
		r := c.beyondShare(in)
		if r != nil {
			r.Have, r.Short = r.Have+" of the root's share", ""
		}
		return r
	}
	return nil
}

// held is a result in which what holds an instance is what rules out the nodes that
// it would fit on, and the one where room is kept for it.
func held(res sched.Result, kept api.NodeID, by *api.Rejection) sched.Result {
	if by == nil {
		return res
	}
	out := sched.Result{Rejected: slices.DeleteFunc(slices.Clone(res.Rejected), func(r api.Rejection) bool {
		if r.Candidate != string(kept) {
			return false
		}
		res.Ranked = append(res.Ranked, sched.Choice{ID: r.Candidate})
		return true
	})}
	for _, choice := range res.Ranked {
		r := *by
		r.Candidate = choice.ID
		out.Rejected = append(out.Rejected, r)
	}
	return out
}

// rankOwn has an instance's own node answer as if the instance were not there.
func (c *Core) rankOwn(req *sched.Request, res sched.Result, n *node, in *instance) sched.Result {
	own := sched.Place(req, []sched.Candidate{c.without(n, in.id())}, c.cfg.Plugin, in.seed())
	res.Ranked = append(slices.DeleteFunc(res.Ranked, func(x sched.Choice) bool { return x.ID == string(in.Node) }), own.Ranked...)
	res.Rejected = append(slices.DeleteFunc(res.Rejected, func(x api.Rejection) bool { return x.Candidate == string(in.Node) }), own.Rejected...)
	return res
}

// WhyOf is Why for an instance that the cluster does not have, because the root
// never offered it.
func (c *Core) WhyOf(r api.WhyRequest) api.Explanation {
	in := c.asked(&r)
	req := c.requestOf(in.placing())
	return sched.Explain(held(c.rank(&req, in.seed()), "", c.holds(in)))
}

// Gen is the generation of the root's desired set that the cluster holds.
func (c *Core) Gen() api.Generation { return c.root.gen }

// Digests are those of the root's desired set and of all observations.
func (c *Core) Digests() (desired, observed api.Digest) { return c.root.wanted, c.root.known }

// RootUp reports whether the stream from the root is up.
func (c *Core) RootUp() bool { return c.root.up }
