package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Nodes lists the cluster's nodes in the order of their ids.
func (c *Core) Nodes() []api.Node {
	out := make([]api.Node, 0, len(c.nodes))
	for _, id := range step.Keys(c.nodes) {
		n, _ := c.Node(id)
		out = append(out, n)
	}
	return out
}

// Node is one node, if there is such.
func (c *Core) Node(id api.NodeID) (api.Node, bool) {
	n := c.nodes[id]
	if n == nil {
		return api.Node{}, false
	}
	v := api.Node{
		NodeInfo: n.info, Cluster: c.cfg.ID, Status: api.NodeReady, Allocated: n.used, Instances: len(n.assigned),
		CPUUsed: int(n.cpu), MemUsed: int(n.mem), Joined: n.joined,
		Subnet: n.net.subnet, Coord: n.coord,
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
	return v, true
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
		Cluster: c.cfg.ID, Node: in.Node, Epoch: in.Epoch, Restarts: in.Restarts, ExitCode: in.ExitCode,
		Spec: in.Want.SpecRev, Leaving: in.Leaving || in.Withdrawn, Address: in.Address,
		Violated: o.Violated, Devices: devices,
	}, true
}

// Why explains, node by node, where an instance could be placed now. ok is
// false for an instance that the cluster does not have.
func (c *Core) Why(id api.InstanceID) (ex api.Explanation, ok bool) {
	in := c.instances[id]
	if in == nil {
		return api.Explanation{}, false
	}
	p := in.placing()
	req := c.requestOf(p, in.avoid...)
	res := c.rank(&req, in.seed())
	if n := c.nodes[in.Node]; n != nil { // it is not in its own way
		res = c.rankOwn(&req, res, n, in)
	}
	return sched.Explain(res), true
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
	d := demandOf(r.Instance, &r.Spec)
	req := c.requestOf(placing{id: r.Instance, demand: &d, targets: r.Targets})
	return sched.Explain(c.rank(&req, sched.SeedOf(r.Instance, 0)))
}

// Gen is the generation of the root's desired set that the cluster holds.
func (c *Core) Gen() api.Generation { return c.root.gen }

// Digests are those of the root's desired set and of all observations.
func (c *Core) Digests() (desired, observed api.Digest) { return c.root.wanted, c.root.known }

// RootUp reports whether the stream from the root is up.
func (c *Core) RootUp() bool { return c.root.up }
