package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Nodes lists the cluster's nodes in the order of their ids, without Remaining.
func (m *Machine) Nodes() []api.Node {
	out := make([]api.Node, 0, len(m.nodes))
	for _, id := range step.Keys(m.nodes) {
		out = append(out, m.viewNode(m.nodes[id]))
	}
	return out
}

// Node returns a node; ok is false if the cluster does not have it.
func (m *Machine) Node(id api.NodeID) (api.Node, bool) {
	n := m.nodes[id]
	if n == nil {
		return api.Node{}, false
	}
	v := m.viewNode(n)
	if n.Draining {
		v.Remaining = m.remaining(n)
	}
	return v, true
}

func (m *Machine) viewNode(n *node) api.Node {
	var reserved api.Resources
	for id := range n.reserved {
		reserved = reserved.Plus(n.account.Booked(id).Resources)
	}
	v := api.Node{
		NodeInfo: n.Info, Cluster: m.cfg.Cluster, Status: n.Status(), Allocated: n.account.Used().Minus(reserved), Reserved: reserved, Instances: len(n.assigned),
		CPUUsed: int(n.CPUUsed), MemUsed: int(n.MemUsed), Joined: n.Joined,
		Subnet: n.subnet, Coord: n.coord, Caps: n.Caps, Capped: n.Capped,
	}
	if n.Heard {
		v.Heard = m.fx.Real(n.LastAlive)
	}
	v.Purging, v.PurgeError = n.Purging, n.PurgeError
	return v
}

// IDs returns the ids of all instances in order.
func (m *Machine) IDs() []api.InstanceID { return step.Keys(m.instances) }

// Record returns a copy of an instance's document, for tests and debugging.
func (m *Machine) Record(id api.InstanceID) (r Record, ok bool) {
	in := m.instances[id]
	if in == nil {
		return r, false
	}
	r = in.Record
	r.OldPlacements, r.Moves = slices.Clone(r.OldPlacements), slices.Clone(r.Moves)
	return r, true
}

// IsLocal reports whether the operator added the instance and the root has not adopted it.
func (m *Machine) IsLocal(id api.InstanceID) bool {
	in := m.instances[id]
	return in != nil && in.Local
}

// Instances lists the cluster's instances, with their nodes, in the order of their ids.
func (m *Machine) Instances() []api.Instance {
	out := make([]api.Instance, 0, len(m.instances))
	for _, id := range step.Keys(m.instances) {
		in, _ := m.Instance(id)
		out = append(out, in)
	}
	return out
}

// Instance returns an instance; ok is false if the cluster does not have it.
func (m *Machine) Instance(id api.InstanceID) (api.Instance, bool) {
	in := m.instances[id]
	if in == nil {
		return api.Instance{}, false
	}
	o := in.view()
	var devices []string
	if n := m.nodes[in.Node]; n != nil {
		devices = n.observed[id].Devices
	}
	return api.Instance{
		ID: id, Service: id.Service(), Number: id.Number(), State: o.State, Reason: o.Reason, Detail: o.Detail,
		Cluster: m.cfg.Cluster, Node: in.Node, Epoch: in.Epoch, Restarts: in.Restarts, Failures: in.Failures, ExitCode: in.ExitCode,
		Spec: in.Desired.SpecRev, Leaving: in.Leaving || in.Withdrawn, Address: in.Address,
		Violated: o.Violated, Devices: devices, Runs: o.Runs,
	}, true
}

// Why explains for each node whether an instance could be placed there now, and why not. ok
// is false for an instance that the cluster does not have.
func (m *Machine) Why(id api.InstanceID) (ex api.Explanation, ok bool) {
	in := m.instances[id]
	if in == nil {
		return api.Explanation{}, false
	}
	req := m.request(in)
	res := m.rank(&req, in.seed())
	if in.Node == "" && in.searchUntil.After(m.fx.Now) {
		loosest := req.Loosest(!in.requestInput().linkedToOtherCluster())
		res = sched.AnnotateSearch(res, m.rank(&loosest, in.seed()), m.fx.Real(in.searchUntil))
	}
	if n := m.nodes[in.Node]; n != nil { // the instance does not count against itself
		res = m.rankOwn(&req, res, n, in)
	}
	return sched.Explain(withHold(res, in.Reserved, m.holdOf(in))), true
}

// Constraints in addition to those of package sched. They prevent the placement of an
// instance on nodes that meet its request.
const (
	ConstraintShare       = "share"     // it exceeds Offer.Share
	ConstraintAwaitsOffer = "bound"     // it was handed back, and the root must offer it again
	ConstraintEarlier     = "earlier"   // an earlier placement may still run, and it is exclusive or has local volumes
	ConstraintReserved    = "reserved"  // capacity is reserved for it until others have left
	ConstraintAsked       = "scheduler" // the external scheduler has not answered
)

// holdOf returns what prevents the placement of an instance without a node on a node that
// meets its request, or nil.
func (m *Machine) holdOf(in *instance) *api.Rejection {
	switch {
	case in.Node != "" || in.Leaving || in.Withdrawn || in.ended():
	case in.AwaitsOffer:
		return &api.Rejection{Constraint: ConstraintAwaitsOffer, Need: "an offer of the root", Have: "none since it was handed back"}
	case in.awaitsEnd():
		return &api.Rejection{Constraint: ConstraintEarlier, Need: "its earlier placement has ended", Have: "not reported yet"}
	case m.asks.Pending(in.id()):
		return &api.Rejection{Constraint: ConstraintAsked, Need: "an answer of " + m.cfg.Asks, Have: "none yet"}
	case in.Reserved != "":
		return &api.Rejection{Constraint: ConstraintReserved, Need: "the preempted instances have stopped", Have: "some still run"}
	case m.tooLarge(in) != nil:
		return m.tooLarge(in)
	default:
		r := m.rejectOverShare(in)
		if r != nil {
			r.Have, r.Short = r.Have+" of the root's share", ""
		}
		return r
	}
	return nil
}

// withHold replaces the ranks of res by the rejection by. This includes the node kept, where
// capacity is reserved for the instance. A nil by changes nothing.
func withHold(res sched.Result, kept api.NodeID, by *api.Rejection) sched.Result {
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

// rankOwn replaces the result of an instance's own node by the one without the instance.
func (m *Machine) rankOwn(req *sched.Request, res sched.Result, n *node, in *instance) sched.Result {
	own := sched.Place(req, []sched.Candidate{n.without(in.id())}, m.cfg.Plugin, in.seed())
	res.Ranked = append(slices.DeleteFunc(res.Ranked, func(x sched.Choice) bool { return x.ID == string(in.Node) }), own.Ranked...)
	res.Rejected = append(slices.DeleteFunc(res.Rejected, func(x api.Rejection) bool { return x.Candidate == string(in.Node) }), own.Rejected...)
	return res
}

// WhyOf is Why for an instance that the root has not offered to the cluster.
func (m *Machine) WhyOf(r api.WhyRequest) api.Explanation {
	in := m.questionInstance(&r)
	req := m.requestOf(in.requestInput())
	return sched.Explain(withHold(m.rank(&req, in.seed()), "", m.holdOf(in)))
}
