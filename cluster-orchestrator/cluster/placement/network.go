package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
)

// Spec returns what the network must know of an instance.
func (m *Machine) Spec(id api.InstanceID) (s routes.Spec, ok bool) {
	in := m.instances[id]
	if in == nil {
		return s, false
	}
	w := &in.Want
	return routes.Spec{Rev: w.SpecRev, Addresses: w.Addresses, Access: w.Spec.Access(), Ports: w.Spec.Ports()}, true
}

// Linked reports whether SLAs of an application name other services of it.
func (m *Machine) Linked(app api.AppID) bool { return m.relations.Linked(app) }

// Coord returns a node's position in the latency space; nil: unknown.
func (m *Machine) Coord(id api.NodeID) *api.Coordinate { return m.nodes[id].coord }

// Targets returns the targets of the instances on a node, by service.
func (m *Machine) Targets(id api.NodeID) map[api.ServiceID][]api.Target {
	out := map[api.ServiceID][]api.Target{}
	for id, in := range m.nodes[id].assigned {
		out[id.Service()] = append(out[id.Service()], in.Want.Targets...)
	}
	return out
}

// Backend returns what others may send to at a place, and whether the node has the instance.
// A node's report counts only for what was placed there.
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
	switch {
	case seen && o.State == api.Running && (here || n.leaving[id] || n.Silent):
		be.Epoch, be.Address, ready = o.Epoch, o.Address, o.Ready
	case !seen && n.Awaited && here && in.State == api.Running:
		be.Epoch, be.Address, ready = in.Epoch, in.Address, in.Ready // as before the restart
	}
	// A silent node may be disconnected from the cluster alone: what it runs may still send
	// to others, which must know who that is.
	if !ready || n.Silent {
		be.State = api.BackendStarting
		return be
	}
	// What is to leave its node takes new flows until its next placement runs, which is when
	// the node is told to end it.
	stays, ok := n.stays[id]
	if here && be.Epoch == in.Epoch && in.State == api.Running && !in.Leaving && !in.Withdrawn || ok && be.Epoch == stays.Epoch {
		be.State = api.BackendUp
	}
	return be
}
