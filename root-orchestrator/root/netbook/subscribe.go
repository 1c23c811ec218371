package netbook

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Limits for the subscriptions of one cluster.
const (
	maxSubscriptions          = 1 << 17
	maxSubscriptionsPerTenant = maxSubscriptions / 8 // for services of one tenant
	maxFull                   = 64                   // tenants whose limit an event reports
	// maxName is the maximum length of names in a report. It is above that of a tenant's path of
	// eight parts and four names.
	maxName = 512
)

// never is the expiry of a cluster's subscriptions, which do not expire.
var never = time.Unix(1<<62, 0)

// subscriptions handles the subscriptions in a report.
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

// mayAdd reports whether a cluster may have another subscription. A tenant gets only a part of the
// cluster's limit, so that others can subscribe too.
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
		c.event(cl, t, fmt.Sprintf("its nodes have reached the limit of subscriptions to services and addresses of other clusters: %d of %d, of this tenant %d of %d; further ones are not answered",
			all, maxSubscriptions, cl.perTenant[t], maxSubscriptionsPerTenant))
	}
	return false
}

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
	// Once the count is well below the limits, request the rejected subscriptions again.
	if len(cl.full) > 0 && c.subs.Count(cl.id) < maxSubscriptions*3/4 {
		for of := range cl.full {
			if cl.perTenant[of] < maxSubscriptionsPerTenant*3/4 {
				delete(cl.full, of)
				cl.requestWhole = true
			}
		}
	}
}
