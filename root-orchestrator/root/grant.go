package root

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// grant returns the cluster's grant. A cluster that was stored before grants existed
// is open to all tenants if the installation owns it, and otherwise to its owner
// only.
func (cl *cluster) grant() api.Grant {
	if cl.Grant == nil {
		return api.Grant{Open: cl.Info.Tenant == ""}
	}
	return *cl.Grant
}

// admits reports whether the cluster's grant includes the tenant.
func (cl *cluster) admits(t api.Tenant) bool { return cl.grant().Admits(cl.Info.Tenant, t) }

func (c *Core) setGrant(in SetGrant) error {
	cl := c.clusters[in.ID]
	if cl == nil {
		return c.noCluster(in.ID)
	}
	if in.IfMatch != 0 && in.IfMatch != cl.Revision {
		return fmt.Errorf("cluster %s is at revision %d: %w", in.ID, cl.Revision, api.ErrPrecondition)
	}
	if err := in.Grant.Validate(); err != nil {
		return err
	}
	g := in.Grant
	g.Tenants = slices.Clone(g.Tenants)
	cl.Grant = &g
	cl.Agg = c.limit(cl, cl.Agg) // after a cap is raised, the next report brings the higher values
	c.changedCluster(cl)
	c.event(api.Event{
		Kind: "cluster", Object: string(in.ID), Cluster: in.ID, Detail: step.Clip(in.By + " set the grant: " + audience(cl)),
	})
	c.refresh(cl)
	c.turnOut(cl)
	c.retryWaiting(cl, roomier)
	return nil
}

// audience returns the text for people that says which tenants the cluster is open to.
func audience(cl *cluster) string {
	g := cl.grant()
	if g.Open {
		return "open to all tenants"
	}
	to := slices.Clone(g.Tenants)
	if cl.Info.Tenant != "" {
		to = slices.Insert(to, 0, cl.Info.Tenant)
	}
	if len(to) == 0 {
		return "closed"
	}
	return fmt.Sprintf("open to %s", to)
}

// turnOut removes from the cluster the instances of tenants that it no longer admits,
// and places them elsewhere. They are stopped first, because the cluster is not
// trusted to run them. An exclusive one is placed only after the cluster has
// confirmed that it stopped.
func (c *Core) turnOut(cl *cluster) {
	var out []*instance
	for _, id := range c.byUrgency(cl.assigned) {
		in := cl.assigned[id]
		if cl.admits(id.Tenant()) {
			continue
		}
		switch {
		case in.trialAt(cl) != nil:
			c.endTrial(in)
		case in.ended():
			continue // it does not run and is not placed again
		case in.Next != nil:
			c.promote(in, api.ClusterScheduled)
		default:
			c.stopWaiting(in)
			in.Reason = api.ReasonNotAdmitted
			c.takeBack(in, cl)
			if in.Spec.Exclusive {
				c.awaitStop(in, cl)
			}
			c.become(in, api.Requested, api.ReasonNotAdmitted, fmt.Sprintf("cluster %s was closed to tenant %s", cl.Info.ID, id.Tenant()))
		}
		out = append(out, in)
	}
	for _, in := range out {
		if in.Cluster == "" {
			c.tryPlace(in)
		} else {
			c.tryPlaceOffered(in)
		}
		c.reconcileSoon(in.ID.Service())
	}
}

// capEvery is the least time between two events about values of a cluster above its
// caps, and capAgain the time after which an unchanged event is repeated.
const capEvery, capAgain = time.Minute, time.Hour

// limit returns the aggregate with values above the cluster's caps replaced by the
// caps, and records an event about them.
func (c *Core) limit(cl *cluster, a api.Aggregate) api.Aggregate {
	caps := cl.grant().Caps
	var above []string
	limit := func(r api.Resources) api.Resources {
		r, _ = caps.Limit(r)
		return r
	}
	a.Capacity, above = caps.Limit(a.Capacity)
	a.Free, a.Mean, a.Largest = limit(a.Free), limit(a.Mean), limit(a.Largest)
	if caps.Nodes > 0 && a.Nodes > caps.Nodes {
		a.Nodes, above = caps.Nodes, append(above, "nodes")
		a.Unplaced = min(a.Unplaced, a.Nodes)
		if a.Overlay != nil {
			a.Overlay = new(min(*a.Overlay, a.Nodes))
		}
	}
	a.Yields = slices.Clone(a.Yields)
	for i := range a.Yields {
		a.Yields[i].Free, a.Yields[i].Largest = limit(a.Yields[i].Free), limit(a.Yields[i].Largest)
	}
	a.Slots = slices.Clone(a.Slots)
	for i := range a.Slots {
		s := &a.Slots[i]
		s.Free, s.Largest = limit(s.Free), limit(s.Largest)
		if caps.NoPrivileged && s.Privileged {
			s.Privileged, above = false, append(above, "privileged")
		}
		s.Devices = slices.Clone(s.Devices)
		for k := range s.Devices {
			d := &s.Devices[k]
			if most := caps.Device(d.Name); d.Free > most {
				d.Free, d.Largest, above = most, min(d.Largest, most), append(above, d.Name)
			}
		}
	}
	slices.Sort(above)
	what, since := strings.Join(slices.Compact(above), ", "), c.now.Sub(cl.capped)
	if what != "" && (cl.capped.IsZero() || since >= capAgain || what != cl.cappedAt && since >= capEvery) {
		cl.capped, cl.cappedAt = c.now, what
		c.event(api.Event{
			Kind: "cluster", Object: string(cl.Info.ID), Cluster: cl.Info.ID, Reason: api.ReasonCapped,
			Detail: step.Clip("claims more than its caps, which count instead: " + what),
		})
	}
	return a
}
