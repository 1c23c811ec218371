package httpapi

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Changed publishes changes to watchers. It runs on the core's owner and does not block.
func (a *API) Changed(changes ...api.Change) { a.feed.Add(a.completed(changes)...) }

// completed adds what the core's changes do not contain: the tenants of clusters and
// their events, and the changed services and running counts of applications, once for
// all the changes.
func (a *API) completed(changes []api.Change) []api.Change {
	out := make([]api.Change, 0, len(changes)+4)
	told := map[string]bool{}    // applications that the core shows itself
	touched := touchedServices{} // services whose counts may be others now
	for _, c := range changes {
		switch c.Kind {
		case "cluster":
			c.Tenant = a.clusterTenant(c)
		case "event":
			if e, ok := c.Object.(api.Event); ok {
				c.Tenant = a.eventTenant(e)
			}
		case "instance":
			touched.add(api.InstanceID(c.ID).Service())
		case "app":
			told[c.ID] = true
			out = append(out, a.goneServices(c)...)
			if o, ok := c.Object.(api.App); ok {
				touched.add(o.Services...)
			}
		}
		out = append(out, c)
	}
	if len(touched.order) == 0 {
		return out
	}
	rev := changes[len(changes)-1].Revision
	for _, id := range touched.order {
		if s, ok := a.core.Service(id); ok {
			out = append(out, api.Change{Kind: "service", ID: string(id), Tenant: id.Tenant(), Revision: rev, Object: s})
		}
		app := id.App()
		if told[string(app)] {
			continue
		}
		told[string(app)] = true
		if o, ok := a.core.App(app); ok {
			out = append(out, api.Change{Kind: "app", ID: string(app), Tenant: app.Tenant(), Revision: rev, Object: o})
		}
	}
	return out
}

type touchedServices struct {
	order []api.ServiceID
	seen  map[api.ServiceID]bool
}

func (t *touchedServices) add(ids ...api.ServiceID) {
	if t.seen == nil {
		t.seen = map[api.ServiceID]bool{}
	}
	for _, id := range ids {
		if !t.seen[id] {
			t.seen[id] = true
			t.order = append(t.order, id)
		}
	}
}

// goneServices returns the services that an application no longer has.
func (a *API) goneServices(c api.Change) []api.Change {
	var now []api.ServiceID
	if o, ok := c.Object.(api.App); ok {
		now = o.Services
	}
	var out []api.Change
	for _, id := range a.services[c.ID] {
		if !slices.Contains(now, id) {
			out = append(out, api.Change{Kind: "service", ID: string(id), Tenant: c.Tenant, Revision: c.Revision})
		}
	}
	if a.services[c.ID] = now; now == nil {
		delete(a.services, c.ID)
	}
	return out
}

func (a *API) clusterTenant(c api.Change) api.Tenant {
	a.mu.Lock()
	defer a.mu.Unlock()
	id := api.ClusterID(c.ID)
	if o, ok := c.Object.(api.Cluster); ok {
		a.owners[id] = o.Tenant
	}
	return a.owners[id] // of one that is gone: whose it was
}

// eventTenant returns the owner of an event. Events about a cluster belong to its operator.
func (a *API) eventTenant(e api.Event) api.Tenant {
	if e.Tenant != "" || e.Cluster == "" {
		return e.Tenant
	}
	a.mu.RLock()
	defer a.mu.RUnlock()
	return a.owners[e.Cluster]
}
