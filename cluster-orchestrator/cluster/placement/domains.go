package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// domains are those that the instance may not come into: because enough of its
// own service are there, or one that it is to be apart from, or that is to be
// apart from it.
func (m *Machine) domains(p placing) (out []sched.Domain) {
	self := p.id.Service()
	for _, by := range p.demand.spreads {
		for _, d := range m.census(self, by.By, p) {
			if d.Have >= by.Limit {
				d.Limit = by.Limit
				out = append(out, d)
			}
		}
	}
	shun := func(other api.ServiceID, by string) {
		for _, d := range m.census(other, by, p) {
			d.AntiAffinity = other.NameInApp()
			out = append(out, d)
		}
	}
	for _, a := range p.demand.antiAffinities {
		for _, other := range m.named(self, a) {
			shun(other, a.By)
		}
	}
	for _, other := range step.Keys(m.linkers[self.App()]) {
		if other == self {
			continue
		}
		for _, a := range m.services[other].antiAffinities {
			if a.Names(other, self) {
				shun(other, a.By)
			}
		}
	}
	return out
}

// leaves notes whom an instance of a service kept out of where it was, and that
// it is there no more.
func (m *Machine) leaves(id api.ServiceID) {
	s, app := m.services[id], id.App()
	if _, noted := m.left[id]; noted || !s.spread && len(m.linkers[app]) == 0 {
		return
	}
	kept := []api.ServiceID{}
	for other := range m.apps[app] {
		o := m.services[other]
		switch {
		case other == id && s.spread,
			slices.ContainsFunc(s.antiAffinities, func(a sched.AntiAffinity) bool { return a.Names(id, other) }),
			slices.ContainsFunc(o.antiAffinities, func(a sched.AntiAffinity) bool { return a.Names(other, id) }):
			kept = append(kept, other)
		}
	}
	m.left[id] = kept
}

// named are the services that one is to be apart from.
func (m *Machine) named(self api.ServiceID, a sched.AntiAffinity) []api.ServiceID {
	return slices.DeleteFunc(step.Keys(m.apps[self.App()]), func(other api.ServiceID) bool {
		return other == self || !a.Names(self, other)
	})
}

// shared are the domains in which an instance came to be with too many of its own
// service, or with one that it is to be apart from. Only labels change while it is
// placed: which node and which cluster it is on was minded when it came there.
func (m *Machine) shared(in *instance, n *node) (out []sched.Domain) {
	self := in.id().Service()
	for _, s := range in.demand.spreads {
		if have := m.crowd(self, s.By, n); have > s.Limit {
			out = append(out, sched.Domain{By: s.By, Name: n.Info.Labels[s.By], Have: have, Limit: s.Limit})
		}
	}
	for _, a := range in.demand.antiAffinities {
		if !isLabel(a.By) {
			continue
		}
		for _, other := range m.named(self, a) {
			if have := m.crowd(other, a.By, n); have > 0 {
				out = append(out, sched.Domain{By: a.By, Name: n.Info.Labels[a.By], Have: have, AntiAffinity: other.NameInApp()})
			}
		}
	}
	return out
}

func isLabel(by string) bool { return by != "node" && by != "cluster" }

// crowd is how many instances of a service are where a label of their nodes is
// that of one node, 0 by anything else. They are counted once for all that look at
// them while no candidate changes.
func (m *Machine) crowd(id api.ServiceID, by string, n *node) int {
	s, value := m.services[id], n.Info.Labels[by]
	if s == nil || value == "" || !isLabel(by) {
		return 0
	}
	known, ok := s.crowds[by]
	if !ok || known.version != m.version {
		known = crowds{m.version, map[string]int{}}
		for name, count := range s.peers {
			if at := m.nodes[api.NodeID(name)]; at != nil {
				known.have[at.Info.Labels[by]] += count
			}
		}
		if s.crowds == nil {
			s.crowds = map[string]crowds{}
		}
		s.crowds[by] = known
	}
	return known.have[value]
}

// crowds are instances by the value of a label of their nodes, as of a version of
// the table.
type crowds struct {
	version uint64
	have    map[string]int
}

// census is how many instances of a service each domain has, but the one that is
// to be placed.
func (m *Machine) census(id api.ServiceID, by string, p placing) []sched.Domain {
	s := m.services[id]
	if s == nil {
		return nil
	}
	var out []sched.Domain
	at, own := map[string]int{}, s.instances[p.id] // in out
	add := func(name string, count int) {          // in no order: a node is in one of them
		n := m.nodes[api.NodeID(name)]
		if n == nil || count <= 0 {
			return
		}
		domain := sched.DomainOf(by, m.cfg.Cluster, n.Info.ID, n.Info.Labels)
		if domain == "" {
			return
		}
		if by == "node" && len(s.expected) == 0 {
			out = append(out, sched.Domain{By: by, Name: domain, Have: count})
			return
		}
		i, seen := at[domain]
		if !seen {
			i, at[domain] = len(out), len(out)
			out = append(out, sched.Domain{By: by, Name: domain})
		}
		out[i].Have += count
	}
	for name, count := range s.peers {
		if own != nil && api.NodeID(name) == p.node {
			count--
		}
		add(name, count)
	}
	for name, count := range s.expected {
		if own != nil && api.NodeID(name) == own.Reserved {
			count--
		}
		add(name, count)
	}
	return out
}
