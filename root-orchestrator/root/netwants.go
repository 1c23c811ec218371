package root

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
)

// mostWants bounds what one cluster may want, mostWantsOfTenant what of it may be on
// behalf of one tenant's services, mostQuoted what it may say is in use.
const (
	mostWants         = 1 << 17
	mostWantsOfTenant = mostWants / 8
	mostQuoted        = 1024
	mostFull          = 64 // tenants of a cluster that are said to want more
)

// forever is when a cluster's wants expire: when it says so.
var forever = time.Unix(1<<62, 0)

// netWants takes what a cluster wants to know of others.
func (c *Core) netWants(cl *cluster, n *api.ClusterNet) {
	id, k := cl.Info.ID, &cl.net
	if n.Whole {
		keep := make(map[api.Want]bool, len(n.Wants))
		for _, w := range n.Wants {
			keep[w] = true
		}
		if k.wanting == nil {
			k.wanting = interest.NewRun(api.WantName, interest.CompareWants)
		}
		k.wanting.Within(n.Of, c.net.book.EachWant(id), len(keep), func(w api.Want) bool {
			if !keep[w] {
				c.dropWant(ref{Sub: id, Want: w})
			}
			return keep[w]
		})
		if n.Of.Last() {
			k.wanting = nil
		}
	}
	for _, w := range n.Dropped {
		if !c.net.book.Has(id, w) && k.unkept != 0 {
			k.unkept = k.unkept.Toggle(w.Digest())
		}
		c.dropWant(ref{Sub: id, Want: w})
	}
	if n.Whole && n.Of.After == "" {
		k.unkept = 0
	}
	for _, w := range n.Wants {
		if c.net.book.Has(id, w) {
			continue
		}
		if !c.keepsWant(cl, w) {
			k.unkept = k.unkept.Toggle(w.Digest())
			continue
		}
		c.net.book.Add(id, w, forever)
		k.wanting.Add(w)
		k.wants = k.wants.Toggle(w.Digest())
		k.wantsOf[w.For.Tenant()]++
		c.resolve(ref{Sub: id, Want: w})
	}
}

// keepsWant reports whether there is room for another want of a cluster's: all of
// it have so much, and each of its tenants a part of that, so that none is in
// another's way.
func (c *Core) keepsWant(cl *cluster, w api.Want) bool {
	k, t := &cl.net, w.For.Tenant()
	if len(w.Service) > longestName || len(w.For) > longestName {
		return false
	}
	if k.wantsOf == nil {
		k.wantsOf, k.full = map[api.Tenant]int{}, map[api.Tenant]bool{}
	}
	all := c.net.book.Count(cl.Info.ID)
	if k.wantsOf[t] < mostWantsOfTenant && all < mostWants {
		return true
	}
	if !k.full[t] && len(k.full) < mostFull {
		k.full[t] = true
		c.event(api.Event{
			Tenant: t, Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID,
			Detail: fmt.Sprintf("its nodes want more services and addresses elsewhere than are kept: %d of %d, for this tenant %d of %d; what is beyond is not answered",
				all, mostWants, k.wantsOf[t], mostWantsOfTenant),
		})
	}
	return false
}

// dropWant forgets a want.
func (c *Core) dropWant(r ref) {
	cl := c.clusters[r.Sub]
	k, t := &cl.net, r.Want.For.Tenant()
	if !c.net.book.Has(r.Sub, r.Want) {
		return
	}
	k.wants = k.wants.Toggle(r.Want.Digest())
	if k.wantsOf[t]--; k.wantsOf[t] == 0 {
		delete(k.wantsOf, t)
	}
	c.isAbout(r, "")
	c.net.book.Drop(r.Sub, r.Want)
	c.askAddress(r.Want)
	// There is room again for what was not kept: it is named again.
	if len(k.full) > 0 && c.net.book.Count(r.Sub) < mostWants*3/4 {
		for of := range k.full {
			if k.wantsOf[of] < mostWantsOfTenant*3/4 {
				delete(k.full, of)
				k.askNet = true
			}
		}
	}
}

// forgetWants forgets what a cluster wanted and held.
func (c *Core) forgetWants(cl *cluster) {
	for _, w := range c.net.book.Wants(cl.Info.ID) {
		c.dropWant(ref{Sub: cl.Info.ID, Want: w})
	}
	c.net.book.Forget(cl.Info.ID)
}
