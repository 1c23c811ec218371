package httpapi

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Changed publishes changes to watchers. It runs on the core's owner and does not block.
func (a *API) Changed(changes ...api.Change) {
	a.watches.Add(a.completed(changes)...)
	if slices.ContainsFunc(changes, func(c api.Change) bool { return c.Kind == "event" }) {
		a.webhooks.Wake()
	}
}

// completed adds what the core's changes lack: the tenants of clusters and their events, and each
// service and application whose counts may have changed, once per call.
func (a *API) completed(changes []api.Change) []api.Change {
	out := make([]api.Change, 0, len(changes)+4)
	shown := map[string]bool{}             // applications in out
	var services step.Queue[api.ServiceID] // services whose counts may have changed
	for _, c := range changes {
		switch c.Kind {
		case "cluster":
			c.Tenant = a.clusterTenant(c)
		case "event":
			if e, ok := c.Object.(api.Event); ok {
				c.Tenant = a.eventTenant(e)
			}
		case "instance":
			services.Add(api.InstanceID(c.ID).Service())
		case "app":
			shown[c.ID] = true
			out = append(out, a.removedServices(c)...)
			if o, ok := c.Object.(api.App); ok {
				for _, id := range o.Services {
					services.Add(id)
				}
			}
		}
		out = append(out, c)
	}
	for _, id := range services.List() {
		rev := changes[len(changes)-1].Revision
		if s, ok := a.core.Service(id); ok {
			out = append(out, api.Change{Kind: "service", ID: string(id), Tenant: id.Tenant(), Revision: rev, Object: s})
		}
		app := id.App()
		if shown[string(app)] {
			continue
		}
		shown[string(app)] = true
		if o, ok := a.core.App(app); ok {
			out = append(out, api.Change{Kind: "app", ID: string(app), Tenant: app.Tenant(), Revision: rev, Object: o})
		}
	}
	return out
}

// removedServices returns the services that an application no longer has.
func (a *API) removedServices(c api.Change) []api.Change {
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
	return a.owners[id] // also of a removed cluster
}

// eventTenant returns the tenant that owns an event. Events about a cluster belong to the cluster's
// tenant.
func (a *API) eventTenant(e api.Event) api.Tenant {
	if e.Tenant != "" || e.Cluster == "" {
		return e.Tenant
	}
	return a.ownerOf(e.Cluster)
}
