package root

import (
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Within reports whether an object of tenant is seen by of: its own and those
// below it; "" sees all.
func Within(tenant, of api.Tenant) bool {
	return of == "" || tenant == of || strings.HasPrefix(string(tenant), string(of)+"/")
}

// Revision is the newest that any object has.
func (c *Core) Revision() api.Revision { return api.Revision(c.counter.Last()) }

// App is one application, if there is such.
func (c *Core) App(id api.AppID) (api.App, bool) {
	a := c.apps[id]
	if a == nil {
		return api.App{}, false
	}
	return c.viewApp(a), true
}

// Apps lists the applications that a tenant sees, in the order of their ids.
func (c *Core) Apps(tenant api.Tenant) []api.App {
	var out []api.App
	for _, id := range step.Keys(c.apps) {
		if a := c.apps[id]; Within(a.Tenant, tenant) {
			out = append(out, c.viewApp(a))
		}
	}
	return out
}

func (c *Core) viewApp(a *app) api.App {
	v := api.App{
		ID: a.ID, Tenant: a.Tenant, Spec: a.Spec, Leaving: a.Leaving, Created: a.Created, By: a.By, Revision: a.Revision,
	}
	v.Spec.Services = append([]api.Microservice(nil), a.Spec.Services...)
	for i := range v.Spec.Services {
		m := &v.Spec.Services[i]
		id := a.ID.Service(m.Name, m.Namespace)
		n := a.Replicas[id]
		m.Replicas = &n
		v.Services = append(v.Services, id)
		v.Wanted += n
		if s := c.services[id]; s != nil {
			running, completed, failed := s.counts()
			v.Running, v.Completed, v.Failed = v.Running+running, v.Completed+completed, v.Failed+failed
		}
	}
	return v
}

// counts are the service's instances that run, have completed and have failed for good.
func (s *service) counts() (running, completed, failed int) {
	for _, in := range s.instances {
		switch {
		case in.Leaving:
		case in.State == api.Running:
			running++
		case in.State == api.Completed:
			completed++
		case in.ended():
			failed++
		}
	}
	return running, completed, failed
}

// versions are the SLA revisions that the service's instances have, the newest
// first; nil where all have the same.
func (s *service) versions() []api.Version {
	by := map[api.Revision]*api.Version{}
	for _, in := range s.instances {
		if in.Leaving {
			continue
		}
		v := by[in.SpecRev]
		if v == nil {
			v = &api.Version{SpecRev: in.SpecRev, Code: in.Spec.Code}
			by[in.SpecRev] = v
		}
		if v.Instances++; in.State == api.Running {
			v.Running++
		}
	}
	if len(by) < 2 {
		return nil
	}
	out := make([]api.Version, 0, len(by))
	for _, rev := range slices.Backward(step.Keys(by)) {
		out = append(out, *by[rev])
	}
	return out
}

// Service is one service, if there is such.
func (c *Core) Service(id api.ServiceID) (api.Service, bool) {
	s := c.services[id]
	if s == nil || s.app == nil {
		return api.Service{}, false
	}
	running, completed, failed := s.counts()
	return api.Service{
		ID: id, App: s.app.ID, Spec: *s.spec, Replicas: s.app.Replicas[id],
		Running: running, Completed: completed, Failed: failed, Versions: s.versions(),
		SpecRev: s.app.SpecRevs[id], Revision: s.app.Revision, Addresses: s.app.Addresses[id],
	}, true
}

// Services lists the services that a tenant sees, in the order of their ids.
func (c *Core) Services(tenant api.Tenant) []api.Service {
	var out []api.Service
	for _, id := range step.Keys(c.services) {
		if v, ok := c.Service(id); ok && Within(id.Tenant(), tenant) {
			out = append(out, v)
		}
	}
	return out
}

// Instance is one instance, if there is such.
func (c *Core) Instance(id api.InstanceID) (api.Instance, bool) {
	in := c.instances[id]
	if in == nil {
		return api.Instance{}, false
	}
	return c.view(in), true
}

// Instances lists the instances that a tenant sees, in the order of their ids.
func (c *Core) Instances(tenant api.Tenant) []api.Instance {
	var out []api.Instance
	for _, id := range step.Keys(c.instances) {
		if Within(id.Tenant(), tenant) {
			out = append(out, c.view(c.instances[id]))
		}
	}
	return out
}

func (c *Core) view(in *instance) api.Instance {
	v := api.Instance{
		ID: in.ID, Service: in.ID.Service(), Number: in.ID.Number(), State: in.State, Reason: in.Reason,
		Detail: in.Detail, Cluster: in.Cluster, Epoch: in.Epoch, Restarts: in.Restarts, Failures: in.Failures, ExitCode: in.ExitCode,
		Spec: in.SpecRev, Leaving: in.Leaving, Since: in.Since, Created: in.Created, Revision: in.Revision, Tries: in.Tries,
		Address: in.Address, Violated: in.Violated, Devices: in.Devices,
	}
	if cl := c.clusters[in.Cluster]; cl != nil {
		v.Stale = cl.silent || !cl.heard
	}
	return v
}

// Cluster is one cluster, if there is such.
func (c *Core) Cluster(id api.ClusterID) (api.Cluster, bool) {
	cl := c.clusters[id]
	if cl == nil {
		return api.Cluster{}, false
	}
	v := api.Cluster{
		ClusterInfo: cl.Info, Status: api.ClusterReady, Aggregate: cl.Agg, Reserved: cl.reserved,
		Instances: len(cl.assigned), Joined: cl.Joined, Revision: cl.Revision,
		Shares: cl.Shares, NetworkError: cl.net.error, Grant: cl.grant(),
	}
	switch {
	case cl.silent:
		v.Status = api.ClusterSilent
	case !cl.heard:
		v.Status = api.ClusterJoining
	}
	if cl.heard {
		v.Heard = c.clock.Real(cl.lastHeard)
	}
	return v, true
}

// Clusters lists the clusters in the order of their ids.
func (c *Core) Clusters() []api.Cluster {
	out := make([]api.Cluster, 0, len(c.clusters))
	for _, id := range step.Keys(c.clusters) {
		v, _ := c.Cluster(id)
		out = append(out, v)
	}
	return out
}

// Desired is a fingerprint of what a cluster should have, with its generation.
func (c *Core) Desired(id api.ClusterID) (api.Generation, api.Digest, bool) {
	cl := c.clusters[id]
	if cl == nil {
		return 0, 0, false
	}
	return cl.gen, cl.wanted, true
}

// EventFilter narrows Events. Zero values do not.
type EventFilter struct {
	Tenant   api.Tenant
	Instance api.InstanceID
	App      api.AppID
	Since    api.Revision // only later ones
	Limit    int          // the newest so many
}

// Events lists what happened, oldest first.
func (c *Core) Events(f EventFilter) []api.Event {
	var out []api.Event
	all := c.events.all
	for i := len(all) - 1; i >= 0; i-- {
		e := all[i]
		if e.Seq <= f.Since || f.Limit > 0 && len(out) >= f.Limit || len(out) >= c.cfg.EventsKept {
			break
		}
		switch {
		case madeWay(e):
		case e.Tenant == "" && f.Tenant != "", e.Tenant != "" && !Within(e.Tenant, f.Tenant):
		case f.Instance != "" && e.Instance != f.Instance:
		case f.App != "" && (e.Tenant != f.App.Tenant() || e.Object != f.App.Name() && !strings.HasPrefix(e.Object, f.App.Name()+".")):
		default:
			out = append(out, e)
		}
	}
	for i, j := 0, len(out)-1; i < j; i, j = i+1, j-1 {
		out[i], out[j] = out[j], out[i]
	}
	return out
}
