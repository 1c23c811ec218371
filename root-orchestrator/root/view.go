package root

import (
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
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
			v.Running += s.running()
		}
	}
	return v
}

func (s *service) running() int {
	n := 0
	for _, in := range s.instances {
		if in.State == api.Running && !in.Leaving {
			n++
		}
	}
	return n
}

// Service is one service, if there is such.
func (c *Core) Service(id api.ServiceID) (api.Service, bool) {
	s := c.services[id]
	if s == nil || s.app == nil {
		return api.Service{}, false
	}
	return api.Service{
		ID: id, App: s.app.ID, Spec: *s.spec, Replicas: s.app.Replicas[id], Running: s.running(),
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
		Detail: in.Detail, Cluster: in.Cluster, Epoch: in.Epoch, Restarts: in.Restarts, ExitCode: in.ExitCode,
		Spec: in.SpecRev, Leaving: in.Leaving, Since: in.Since, Created: in.Created, Revision: in.Revision, Tries: in.Tries,
		Address: in.Address,
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
		Shares: cl.Shares, NetworkError: cl.net.error,
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
	for i := len(c.events) - 1; i >= 0; i-- {
		e := c.events[i]
		if e.Seq <= f.Since || f.Limit > 0 && len(out) >= f.Limit || len(out) >= c.cfg.EventsKept {
			break
		}
		switch {
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

// Why answers why an instance is where it is, or why it is nowhere, and what
// would change that. now is for the age of what is told.
func (c *Core) Why(id api.InstanceID, now time.Time) (api.Why, bool) {
	in := c.instances[id]
	if in == nil {
		return api.Why{}, false
	}
	req := sched.RequestFor(in.ID, &in.Spec)
	req.Peers = c.service(id.Service()).peers
	for _, cid := range step.Keys(in.refusals) {
		if in.refusals[cid].until.After(c.now) {
			req.Avoid = append(req.Avoid, string(cid))
		}
	}
	w := api.Why{
		Instance: c.view(in), Placements: append([]api.Placement(nil), in.Placements...),
		Root: sched.Explain(sched.Place(&req, c.cands, c.cfg.Plugin, in.seed())),
	}
	for _, cid := range step.Keys(in.refusals) {
		w.Clusters = append(w.Clusters, in.refusals[cid].why)
	}
	if at := in.notUntil; at.After(c.now) {
		w.NextTry = c.clock.Real(at)
	}
	for _, r := range in.refusals {
		if at := c.clock.Real(r.until); r.until.After(c.now) && (w.NextTry.IsZero() || at.Before(w.NextTry)) {
			w.NextTry = at
		}
	}
	age := now.Sub(in.Since).Round(time.Second)
	switch {
	case in.State == api.Requested:
		w.Summary = fmt.Sprintf("%s waits for a cluster, since %s: %s", id.Name(), age, in.Detail)
		w.WouldHelp = WouldHelp(w)
	case in.State == api.Running:
		w.Summary = fmt.Sprintf("%s runs on cluster %s, since %s", id.Name(), in.Cluster, age)
	default:
		w.Summary = fmt.Sprintf("%s is %s on cluster %s, since %s", id.Name(), in.State, in.Cluster, age)
		if in.Detail != "" {
			w.Summary += ": " + in.Detail
		}
	}
	return w, true
}

// WouldHelp turns the nearest misses into what a person can do.
func WouldHelp(w api.Why) []string {
	var out []string
	add := func(r *api.Rejection) {
		if r == nil {
			return
		}
		switch r.Constraint {
		case sched.ConstraintMemory, sched.ConstraintVCPUs:
			out = append(out, fmt.Sprintf("ask for %s less %s, or free it", r.Short, r.Constraint))
		case sched.ConstraintOut:
			out = append(out, fmt.Sprintf("bring %s back: it is %s", cmpName(r.Candidate, "a cluster"), r.Have))
		case sched.ConstraintCluster, sched.ConstraintNode:
			out = append(out, "name other places in the SLA's constraints")
		case sched.ConstraintNetwork:
			out = append(out, "join a node with a netmanager")
		case sched.ConstraintPort:
			out = append(out, "publish another port, or join a node: "+r.Have+" on all")
		case sched.ConstraintVirtualization, sched.ConstraintArch, sched.ConstraintPrivileged:
			out = append(out, fmt.Sprintf("join a node that offers %s %s", r.Constraint, r.Need))
		}
	}
	for i := range w.Clusters {
		add(w.Clusters[i].Answer.Nearest)
	}
	if len(out) == 0 {
		add(w.Root.Nearest)
	}
	if w.Root.Considered == 0 {
		out = append(out, "let a cluster join: treeline token create --cluster")
	}
	return out
}

func cmpName(name, other string) string {
	if name == "" {
		return other
	}
	return "cluster " + name
}
