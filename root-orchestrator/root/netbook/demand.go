package netbook

import (
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// demand passes a cluster's demand for a sleeping service on to a cluster in which instances of it
// sleep. A cluster may only demand what one of its subscriptions leads to. A demand is sent at once or
// not at all: the node repeats it.
func (c *call) demand(from *cluster, w wire.Subscription) {
	k := c.subs.AnswerOf(from.id, w)
	if k.Kind != interest.Route || !w.Address.IsValid() {
		return
	}
	for _, id := range c.Hosts(k.Service) {
		cl := c.clusters[id]
		if cl == nil || cl == from || cl.silent || !cl.networked || !cl.published.Routes[k.Service].Asleep || !c.Hosting(id, k.Service) {
			continue
		}
		if cl.demands[w.Address] || len(cl.demands) < wire.MaxDemands {
			cl.demands[w.Address] = true
			c.send[id] = true
		}
		if s, ok := c.Service(k.Service); !ok || !isOwn(s, w) {
			return // any cluster will do; an instance's address only concerns the one that has it
		}
	}
}

// isOwn reports whether the address of a subscription is that of one instance.
func isOwn(s Service, w wire.Subscription) bool {
	for _, a := range s.Addresses.Instances {
		if a == w.Address {
			return true
		}
	}
	return false
}
