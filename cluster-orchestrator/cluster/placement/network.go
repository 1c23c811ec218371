package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
)

// Spec returns the network's part of an instance's SLA. ok is false for an unknown instance.
func (m *Machine) Spec(id api.InstanceID) (s routes.Spec, ok bool) {
	in := m.instances[id]
	if in == nil {
		return s, false
	}
	w := &in.Desired
	return routes.Spec{
		Rev: w.SpecRev, Addresses: w.Addresses, Access: w.Spec.Access(), Ports: w.Spec.Ports(),
		// Packets also wait while it starts.
		Asleep: w.Spec.Scale.Sleeps(id.Number()) && !in.Leaving && !in.Withdrawn && !api.Ended(in.State, in.Reason) && !(in.State == api.Running && in.Ready),
	}, true
}

// Linked reports whether an SLA of the application refers to other services or areas.
func (m *Machine) Linked(app api.AppID) bool { return m.relations.Linked(app) }

// Coord returns a node's position in the latency space; nil: unknown.
func (m *Machine) Coord(id api.NodeID) *api.Coordinate { return m.nodes[id].coord }

// Targets returns the targets in other clusters of the instances on a node, by service.
func (m *Machine) Targets(id api.NodeID) map[api.ServiceID][]api.Target {
	out := map[api.ServiceID][]api.Target{}
	for id, in := range m.nodes[id].assigned {
		out[id.Service()] = append(out[id.Service()], in.Desired.Targets...)
	}
	return out
}

// Backend returns the backend at a place, and whether the node has the instance. A node's
// report counts only for instances that were placed there.
func (m *Machine) Backend(p routes.Place) (hosted bool, be api.Backend) {
	n := m.nodes[p.Node]
	hosted = n != nil && (n.assigned[p.Instance] != nil || n.leaving[p.Instance])
	return hosted, m.backend(n, p.Instance)
}

func (m *Machine) backend(n *node, id api.InstanceID) api.Backend {
	in := m.instances[id]
	if n == nil || in == nil {
		return api.Backend{}
	}
	be, ready := api.Backend{Instance: id, State: api.BackendDraining}, false
	here := in.Node == n.Info.ID
	o, seen := n.observed[id]
	if !seen && n.Awaited { // as before the restart
		o = in.reportedBefore(n.Info.ID)
	}
	if o.State == api.Running && (here || n.leaving[id] || n.Silent) {
		be.Epoch, be.Address, ready = o.Epoch, o.Address, o.Ready
	}
	if ready && here && n.Silent && n.reachable {
		return be // draining: new flows use others if there are any
	}
	// A silent node may only be cut off from the cluster. Its instances may still send to
	// others, which need the source record.
	if !ready || n.Silent {
		be.State = api.BackendStarting
		return be
	}
	// A moving instance takes new flows on its old node until its next placement runs. Then
	// the old node is ordered to end it.
	// So does an instance whose next placement is on the same node, while the node fetches the image
	// of that.
	stays, ok := n.set.Kept(id)
	wanted := here && !in.Leaving && !in.Withdrawn
	fetching := in.State == api.NodeScheduled && be.Epoch < in.Epoch && o.Reason != api.ReasonUpdated
	if wanted && (be.Epoch == in.Epoch && in.State == api.Running || fetching) || ok && be.Epoch == stays.Epoch {
		be.State = api.BackendUp
	}
	return be
}

// reportedBefore returns what a node reported last of the instance before a restart of the cluster.
func (in *instance) reportedBefore(id api.NodeID) api.Observed {
	r := in.oldReport(id)
	switch {
	case in.Node == id && in.State == api.Running:
		r = report{Epoch: in.Epoch, Address: in.Address, Ready: in.Ready}
	case in.Node == id:
		r = in.OldReport
	}
	if r.Epoch == 0 {
		return api.Observed{}
	}
	o := api.Observed{Epoch: r.Epoch, State: api.Running, Address: r.Address, Ready: r.Ready}
	if r.Ends {
		o.Reason = api.ReasonUpdated
	}
	return o
}

// oldReport returns what a node that the instance leaves reported last.
func (in *instance) oldReport(id api.NodeID) report {
	for _, v := range in.OldPlacements {
		if v.Node == id {
			return v.Report
		}
	}
	return report{}
}
