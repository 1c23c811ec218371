package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/relations"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// demand is the parsed requirements of an SLA.
type demand struct {
	request sched.Request // without the parts that depend on other instances
	takes   account.Demand
	sla     relations.SLA
	users   []string       // that the SLA has links to
	volumes []string       // names of its local volumes
	csi     []api.VolumeID // its CSI volumes, its own and those of its service
	checked bool           // a placement may violate the SLA later, so it is checked periodically
}

func demandOf(id api.InstanceID, m *api.Microservice) demand {
	d := demand{
		request: sched.RequestFor(id, m), takes: account.Demand{Claim: account.Of(m), Ports: sched.PortsOf(m)},
		sla: relations.SLA{Links: sched.LinksOf(m), Spreads: sched.SpreadsOf(m), AntiAffinities: sched.AntiAffinitiesOf(m)},
	}
	for _, v := range m.LocalVolumes() {
		d.volumes = append(d.volumes, v.Name)
	}
	for _, v := range m.CSIVolumes() {
		d.csi = append(d.csi, v.IDFor(id))
	}
	for _, l := range d.sla.Links {
		if l.User != "" {
			d.users = append(d.users, l.User)
		}
	}
	r := &d.request
	d.checked = len(d.sla.Links)+len(r.Zones)+len(r.Labels)+len(r.Addons) > 0 || r.Needs.InMbit+r.Needs.OutMbit > 0 ||
		slices.ContainsFunc(d.sla.Spreads, func(s sched.Spread) bool { return relations.IsLabel(s.By) }) ||
		slices.ContainsFunc(d.sla.AntiAffinities, func(a sched.AntiAffinity) bool { return relations.IsLabel(a.By) })
	return d
}

// requestInput is the input of requestOf: an instance of the cluster, or one of a question (Why,
// Plan).
type requestInput struct {
	id           api.InstanceID
	demand       *demand
	targets      []api.Target
	node         api.NodeID // its present node, so that it does not count against itself
	near         nearness   // to siblings that link to it
	late         bool       // its search time is over, so bounds may be relaxed; see sched.Request.Relax
	rootSearched bool       // the root found no other cluster that meets the links
}

// nearness is how many of the siblings that link to an instance must be near it.
type nearness int

const (
	nearAll nearness = iota
	nearOne          // it cannot be near all
)

func (in *instance) requestInput() requestInput {
	return requestInput{id: in.id(), demand: &in.demand, targets: in.Desired.Targets, node: in.Node, rootSearched: in.Desired.Searched}
}

// requestOf returns the request of an instance with its present bounds and domains.
func (m *Machine) requestOf(p requestInput, avoid ...string) sched.Request {
	req := p.demand.request
	req.Avoid = avoid
	req.Peers = m.relations.Peers(p.id.Service())
	for _, l := range p.demand.sla.Links {
		if b, binds := m.bound(p.id.Service(), l, p.targets, ""); binds {
			req.Bounds = append(req.Bounds, b)
		}
	}
	req.Bounds = append(req.Bounds, m.relations.InboundBounds(p.id, p.node, p.near == nearOne)...)
	req.Domains = m.relations.Domains(p.id, p.node, &p.demand.sla)
	m.bindVolumes(&req, p)
	return req
}

// bound returns the bound of a service's link, and whether it binds now. With only, measured
// round trips of other nodes are left out.
func (m *Machine) bound(self api.ServiceID, l sched.Link, targets []api.Target, only api.NodeID) (sched.Bound, bool) {
	if l.User != "" {
		return m.latency.UserBound(l), true
	}
	b, binds := m.relations.Bound(self, l, targets)
	if l.Service != "" && l.RTT > 0 {
		m.latency.Measured(&b, self, l, targets, only)
	}
	return b, binds
}

func (m *Machine) request(in *instance, avoid ...string) sched.Request {
	p := in.requestInput()
	req := m.requestOf(p, append(avoid, in.avoid...)...)
	if m.late(in) {
		req = req.Loosest(!p.linkedToOtherCluster()) // no node that is near enough had capacity
	}
	return req
}
