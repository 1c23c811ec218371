package relations

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Domains returns the domains that an instance with the SLA may not enter, because of spread
// or because of its own or another service's anti-affinity. on is the instance's present
// node or "".
func (m *Machine) Domains(id api.InstanceID, on api.NodeID, sla *SLA) (out []sched.Domain) {
	self := id.Service()
	for _, by := range sla.Spreads {
		for _, d := range m.countByDomain(self, by.By, id, on) {
			if d.Have >= by.Limit {
				d.Limit = by.Limit
				out = append(out, d)
			}
		}
	}
	avoid := func(other api.ServiceID, by string) {
		for _, d := range m.countByDomain(other, by, id, on) {
			d.AntiAffinity = other.NameInApp()
			out = append(out, d)
		}
	}
	for _, a := range sla.AntiAffinities {
		for _, other := range m.namedServices(self, a) {
			avoid(other, a.By)
		}
	}
	for _, other := range step.Keys(m.linking[self.App()]) {
		if other == self {
			continue
		}
		for _, a := range m.services[other].sla.AntiAffinities {
			if a.Names(other, self) {
				avoid(other, a.By)
			}
		}
	}
	return out
}

// namedServices returns the other services of the application that an anti-affinity names.
func (m *Machine) namedServices(self api.ServiceID, a sched.AntiAffinity) []api.ServiceID {
	return slices.DeleteFunc(step.Keys(m.apps[self.App()]), func(other api.ServiceID) bool {
		return other == self || !a.Names(self, other)
	})
}

// LabelViolations returns the label domains of a placed instance that violate its spread or
// anti-affinity. Only label domains can change while an instance is placed.
func (m *Machine) LabelViolations(id api.InstanceID) (out []sched.Domain) {
	in, self := m.instances[id], id.Service()
	labels := m.nodes[in.node].Labels
	for _, s := range in.sla.Spreads {
		if have := m.countByLabel(self, s.By, labels[s.By]); have > s.Limit {
			out = append(out, sched.Domain{By: s.By, Name: labels[s.By], Have: have, Limit: s.Limit})
		}
	}
	for _, a := range in.sla.AntiAffinities {
		if !IsLabel(a.By) {
			continue
		}
		for _, other := range m.namedServices(self, a) {
			if have := m.countByLabel(other, a.By, labels[a.By]); have > 0 {
				out = append(out, sched.Domain{By: a.By, Name: labels[a.By], Have: have, AntiAffinity: other.NameInApp()})
			}
		}
	}
	return out
}

// IsLabel reports whether the domains of by are the values of a label.
func IsLabel(by string) bool { return by != "node" && by != "cluster" }

// labelCounts has the number of a service's instances by the value of one node label.
type labelCounts struct {
	version uint64 // of the Machine
	have    map[string]int
}

// countByLabel returns how many instances of a service are on nodes with a value of a label. The
// counts are cached until the Machine changes.
func (m *Machine) countByLabel(id api.ServiceID, by, value string) int {
	s := m.services[id]
	if value == "" || !IsLabel(by) {
		return 0
	}
	known, ok := s.labelCounts[by]
	if !ok || known.version != m.version {
		known = labelCounts{m.version, map[string]int{}}
		for name, count := range s.peers {
			known.have[m.nodes[api.NodeID(name)].Labels[by]] += count
		}
		s.labelCounts[by] = known
	}
	return known.have[value]
}

// countByDomain returns how many instances of a service each domain has, without the instance but,
// which is on the node on or on none.
func (m *Machine) countByDomain(id api.ServiceID, by string, but api.InstanceID, on api.NodeID) (out []sched.Domain) {
	s := m.services[id]
	if s == nil {
		return nil
	}
	at, own := map[string]int{}, s.instances[but] // at has the index in out
	add := func(name string, count int) {         // in any order: each node is in one domain
		node := api.NodeID(name)
		n := m.nodes[node]
		if n == nil || count <= 0 {
			return
		}
		domain := sched.DomainOf(by, m.cluster, node, n.Labels)
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
		if own != nil && api.NodeID(name) == on {
			count--
		}
		add(name, count)
	}
	for name, count := range s.expected {
		if own != nil && api.NodeID(name) == own.expected {
			count--
		}
		add(name, count)
	}
	return out
}
