package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/claims"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// demand is what an SLA asks of a place, read once.
type demand struct {
	request        sched.Request // without what others' places decide
	claim          claims.Claim
	ports          []sched.Port
	links          []sched.Link
	spreads        []sched.Spread
	antiAffinities []sched.AntiAffinity
	users          []string // that it has links to
	tied           bool     // where it is may come to violate it
}

func demandOf(id api.InstanceID, m *api.Microservice) demand {
	d := demand{
		request: sched.RequestFor(id, m), claim: claims.Of(m), ports: sched.PortsOf(m),
		links: sched.LinksOf(m), spreads: sched.SpreadsOf(m), antiAffinities: sched.AntiAffinitiesOf(m),
	}
	for _, l := range d.links {
		if l.User != "" {
			d.users = append(d.users, l.User)
		}
	}
	r := &d.request
	d.tied = len(d.links)+len(r.Zones)+len(r.Labels)+len(r.Addons) > 0 || r.Needs.InMbit+r.Needs.OutMbit > 0 ||
		slices.ContainsFunc(d.spreads, func(s sched.Spread) bool { return isLabel(s.By) }) ||
		slices.ContainsFunc(d.antiAffinities, func(a sched.AntiAffinity) bool { return isLabel(a.By) })
	return d
}

// refersTo reports whether others' places decide where it may be, or the other
// way round.
func (d *demand) refers() bool { return len(d.antiAffinities) > 0 || len(d.links) > len(d.users) }

// placing is a request with all that it takes to answer it from the core's state:
// an instance of the cluster's, or one that is only asked about.
type placing struct {
	id           api.InstanceID
	demand       *demand
	targets      []api.Target
	node         api.NodeID // where it is now: it is not in its own way
	near         nearness   // to those of its siblings that want it near
	late         bool       // its search is over; see sched.Request.Relax
	rootSearched bool       // the root has searched too: no other cluster keeps its links
}

// nearness is to how many of the siblings that want it near an instance has to be.
type nearness int

const (
	nearAll nearness = iota
	nearOne          // to be near to all cannot be
)

func (in *instance) placing() placing {
	return placing{id: in.id(), demand: &in.demand, targets: in.Want.Targets, node: in.Node, rootSearched: in.Want.Searched}
}

// requestOf is what the instance asks of a node now.
func (m *Machine) requestOf(p placing, avoid ...string) sched.Request {
	req := p.demand.request
	req.Avoid = avoid
	if s := m.services[p.id.Service()]; s != nil {
		req.Peers = s.peers
	}
	req.Bounds = m.bounds(p)
	req.Domains = m.domains(p)
	return req
}

func (m *Machine) request(in *instance, avoid ...string) sched.Request {
	p := in.placing()
	req := m.requestOf(p, append(avoid, in.avoid...)...)
	if m.late(in) {
		req = req.Loosest(!p.linkedAway()) // where it would be near enough there was no room
	}
	return req
}
