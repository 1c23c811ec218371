package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// domains are those that the instance may not come into: because enough of its
// own service are there, or one that it is to be apart from, or that is to be
// apart from it.
func (c *Core) domains(p placing) (out []sched.Domain) {
	self := p.id.Service()
	for _, by := range p.demand.spreads {
		for _, d := range c.census(self, by.By, p) {
			if d.Have >= by.Limit {
				d.Limit = by.Limit
				out = append(out, d)
			}
		}
	}
	shun := func(other api.ServiceID, by string) {
		for _, d := range c.census(other, by, p) {
			d.Apart = other.NameInApp()
			out = append(out, d)
		}
	}
	for _, a := range p.demand.aparts {
		for _, other := range c.named(self, a) {
			shun(other, a.By)
		}
	}
	for _, other := range step.Keys(c.linkers[self.App()]) {
		if other == self {
			continue
		}
		for _, a := range c.services[other].aparts {
			if a.Names(other, self) {
				shun(other, a.By)
			}
		}
	}
	return out
}

// leaves notes whom an instance of a service kept out of where it was, and that
// it is there no more.
func (c *Core) leaves(id api.ServiceID) {
	s, app := c.services[id], id.App()
	if _, noted := c.left[id]; noted || !s.spread && len(c.linkers[app]) == 0 {
		return
	}
	kept := []api.ServiceID{}
	for other := range c.apps[app] {
		o := c.services[other]
		switch {
		case other == id && s.spread,
			slices.ContainsFunc(s.aparts, func(a sched.Apart) bool { return a.Names(id, other) }),
			slices.ContainsFunc(o.aparts, func(a sched.Apart) bool { return a.Names(other, id) }):
			kept = append(kept, other)
		}
	}
	c.left[id] = kept
}

// named are the services that one is to be apart from.
func (c *Core) named(self api.ServiceID, a sched.Apart) []api.ServiceID {
	return slices.DeleteFunc(step.Keys(c.apps[self.App()]), func(other api.ServiceID) bool {
		return other == self || !a.Names(self, other)
	})
}

// shared are the domains in which an instance came to be with too many of its own
// service, or with one that it is to be apart from. Only labels change while it is
// placed: which node and which cluster it is on was minded when it came there.
func (c *Core) shared(in *instance, n *node) (out []sched.Domain) {
	self := in.id().Service()
	for _, s := range in.demand.spreads {
		if have := c.crowd(self, s.By, n); have > s.Limit {
			out = append(out, sched.Domain{By: s.By, Name: n.info.Labels[s.By], Have: have, Limit: s.Limit})
		}
	}
	for _, a := range in.demand.aparts {
		if !isLabel(a.By) {
			continue
		}
		for _, other := range c.named(self, a) {
			if have := c.crowd(other, a.By, n); have > 0 {
				out = append(out, sched.Domain{By: a.By, Name: n.info.Labels[a.By], Have: have, Apart: other.NameInApp()})
			}
		}
	}
	return out
}

func isLabel(by string) bool { return by != "node" && by != "cluster" }

// crowd is how many instances of a service are where a label of their nodes is
// that of one node, 0 by anything else. They are counted once for all that look at
// them while no candidate changes.
func (c *Core) crowd(id api.ServiceID, by string, n *node) int {
	s, value := c.services[id], n.info.Labels[by]
	if s == nil || value == "" || !isLabel(by) {
		return 0
	}
	known, ok := s.crowds[by]
	if !ok || known.version != c.version {
		known = crowds{c.version, map[string]int{}}
		for name, count := range s.peers {
			if at := c.nodes[api.NodeID(name)]; at != nil {
				known.have[at.info.Labels[by]] += count
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
func (c *Core) census(id api.ServiceID, by string, p placing) []sched.Domain {
	s := c.services[id]
	if s == nil {
		return nil
	}
	var out []sched.Domain
	at, own := map[string]int{}, s.instances[p.id] // in out
	add := func(name string, count int) {          // in no order: a node is in one of them
		n := c.nodes[api.NodeID(name)]
		if n == nil || count <= 0 {
			return
		}
		domain := sched.DomainOf(by, c.cfg.ID, n.info.ID, n.info.Labels)
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
