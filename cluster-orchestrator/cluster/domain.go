package cluster

import (
	"strings"

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
			d.Apart = strings.TrimPrefix(string(other), string(other.App())+".")
			out = append(out, d)
		}
	}
	for _, a := range p.demand.aparts {
		for _, other := range step.Keys(c.apps[self.App()]) {
			if other != self && a.Names(self, other) {
				shun(other, a.By)
			}
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

// census is how many instances of a service each domain has, but the one that is
// to be placed.
func (c *Core) census(id api.ServiceID, by string, p placing) []sched.Domain {
	s := c.services[id]
	if s == nil {
		return nil
	}
	var out []sched.Domain
	at := map[string]int{}             // in out
	for name, count := range s.peers { // in no order: a node is in one of them
		n := c.nodes[api.NodeID(name)]
		if id == p.id.Service() && api.NodeID(name) == p.node && s.instances[p.id] != nil {
			count--
		}
		if n == nil || count <= 0 {
			continue
		}
		domain := sched.DomainOf(by, c.cfg.ID, n.info.ID, n.info.Labels)
		if domain == "" {
			continue
		}
		if by == "node" {
			out = append(out, sched.Domain{By: by, Name: domain, Have: count})
			continue
		}
		i, seen := at[domain]
		if !seen {
			i, at[domain] = len(out), len(out)
			out = append(out, sched.Domain{By: by, Name: domain})
		}
		out[i].Have += count
	}
	return out
}
