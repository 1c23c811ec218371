package netbook

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Bounds of what one cluster may subscribe to.
const (
	maxSubscriptions          = 1 << 17
	maxSubscriptionsPerTenant = maxSubscriptions / 8 // for the services of one tenant
	maxFull                   = 64                   // tenants for which an event reports that they reached their bound
	// maxName bounds the names in a report: a tenant's path of eight parts and four
	// names, with room to spare.
	maxName = 512
)

// never is when a subscription of a cluster expires.
var never = time.Unix(1<<62, 0)

// subscriptions takes the subscriptions in a report.
func (c *call) subscriptions(cl *cluster, n *wire.ClusterNet) {
	if n.Whole {
		for _, w := range c.subs.Absent(cl.id, n.Of, n.Subscribe) {
			c.unsubscribe(cl, w)
		}
	}
	for _, w := range n.Unsubscribe {
		if !c.subs.Has(cl.id, w) && cl.rejected != 0 {
			cl.rejected = cl.rejected.Toggle(w.Digest())
		}
		c.unsubscribe(cl, w)
	}
	if n.Whole && n.Of.After == "" {
		cl.rejected = 0
	}
	for _, w := range n.Subscribe {
		if c.subs.Has(cl.id, w) {
			continue
		}
		if !c.mayAdd(cl, w) {
			cl.rejected = cl.rejected.Toggle(w.Digest())
			continue
		}
		c.subs.Subscribe(cl.id, w, never)
		cl.perTenant[w.For.Tenant()]++
		c.resolve(sub{Subscriber: cl.id, Subscription: w})
	}
}

// mayAdd reports whether a cluster may have another subscription. A tenant gets only a
// part of the cluster's bound, so that it leaves room for others.
func (c *call) mayAdd(cl *cluster, w wire.Subscription) bool {
	t := w.For.Tenant()
	if len(w.Service) > maxName || len(w.For) > maxName {
		return false
	}
	if cl.perTenant == nil {
		cl.perTenant, cl.full = map[api.Tenant]int{}, map[api.Tenant]bool{}
	}
	all := c.subs.Count(cl.id)
	if cl.perTenant[t] < maxSubscriptionsPerTenant && all < maxSubscriptions {
		return true
	}
	if !cl.full[t] && len(cl.full) < maxFull {
		cl.full[t] = true
		c.event(cl, t, fmt.Sprintf("its nodes subscribe to more services and addresses of other clusters than are kept: %d of %d, for this tenant %d of %d; more are not answered",
			all, maxSubscriptions, cl.perTenant[t], maxSubscriptionsPerTenant))
	}
	return false
}

// unsubscribe removes a subscription, if the cluster has it.
func (c *call) unsubscribe(cl *cluster, w wire.Subscription) {
	if !c.subs.Has(cl.id, w) {
		return
	}
	t := w.For.Tenant()
	if cl.perTenant[t]--; cl.perTenant[t] == 0 {
		delete(cl.perTenant, t)
	}
	c.setAbout(sub{Subscriber: cl.id, Subscription: w}, "")
	c.subs.Unsubscribe(cl.id, w)
	c.askAddress(w)
	// Once there is room, the cluster has to list the rejected ones again.
	if len(cl.full) > 0 && c.subs.Count(cl.id) < maxSubscriptions*3/4 {
		for of := range cl.full {
			if cl.perTenant[of] < maxSubscriptionsPerTenant*3/4 {
				delete(cl.full, of)
				cl.requestWhole = true
			}
		}
	}
}
