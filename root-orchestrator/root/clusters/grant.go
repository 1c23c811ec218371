package clusters

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// grant returns the cluster's grant. A cluster saved before grants existed is open to all tenants
// if it belongs to no tenant, otherwise only to its owner.
func (cl *cluster) grant() api.Grant {
	if cl.record.Grant == nil {
		return api.Grant{Open: cl.record.Info.Tenant == ""}
	}
	return *cl.record.Grant
}

// Admits reports whether the cluster's grant includes the tenant.
func (m *Machine) Admits(id api.ClusterID, t api.Tenant) bool {
	cl := m.clusters[id]
	return cl.grant().Admits(cl.record.Info.Tenant, t)
}

// SetGrant replaces the grant of a cluster at revision ifMatch; 0 matches any. audience describes
// the tenants that the cluster is open to now, above lists the values above the new caps. After
// caps were raised, the next report brings the higher values. Errors: ErrNotFound, ErrPrecondition,
// ErrInvalid.
func (m *Machine) SetGrant(id api.ClusterID, g api.Grant, ifMatch api.Revision) (audience, above string, err error) {
	if err := m.Check(id); err != nil {
		return "", "", err
	}
	cl := m.clusters[id]
	if have := cl.record.Revision; ifMatch != 0 && ifMatch != have {
		return "", "", fmt.Errorf("cluster %s is at revision %d: %w", id, have, api.ErrPrecondition)
	}
	if err := g.Validate(); err != nil {
		return "", "", err
	}
	g.Tenants = slices.Clone(g.Tenants)
	cl.record.Grant = &g
	cl.aggregate, above = m.limit(cl, cl.aggregate)
	return cl.audience(), above, nil
}

func (cl *cluster) audience() string {
	g := cl.grant()
	if g.Open {
		return "open to all tenants"
	}
	to := slices.Clone(g.Tenants)
	if owner := cl.record.Info.Tenant; owner != "" {
		to = slices.Insert(to, 0, owner)
	}
	if len(to) == 0 {
		return "closed"
	}
	return fmt.Sprintf("open to %s", to)
}

// cappedEvery is the least time between two events about values above a cluster's caps. cappedAgain
// is the time after which an unchanged event is repeated.
const cappedEvery, cappedAgain = time.Minute, time.Hour

// limit returns the aggregate limited to the cluster's caps, and the names of the values above them
// if an event is due.
func (m *Machine) limit(cl *cluster, a api.Aggregate) (api.Aggregate, string) {
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
	a.Preemptible = slices.Clone(a.Preemptible)
	for i := range a.Preemptible {
		a.Preemptible[i].Free, a.Preemptible[i].Largest = limit(a.Preemptible[i].Free), limit(a.Preemptible[i].Largest)
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
			if limit := caps.Device(d.Name); d.Free > limit {
				d.Free, d.Largest, above = limit, min(d.Largest, limit), append(above, d.Name)
			}
		}
	}
	slices.Sort(above)
	names, since := strings.Join(slices.Compact(above), ", "), m.now.Sub(cl.cappedAt)
	if names == "" || !cl.cappedAt.IsZero() && since < cappedAgain && (names == cl.capped || since < cappedEvery) {
		return a, ""
	}
	cl.cappedAt, cl.capped = m.now, names
	return a, names
}
