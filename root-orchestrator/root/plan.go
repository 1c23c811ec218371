package root

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/cron"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addons"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
	"github.com/treeline-edge/treeline/root-orchestrator/root/placement"
)

// The actions of a plan, for applications and for instances.
const (
	PlanCreate  = "create"
	PlanUpdate  = "update"
	PlanNone    = "none"
	PlanPlace   = "place"
	PlanReplace = "replace"
	PlanStop    = "stop"
	PlanStay    = "stay"
	PlanWait    = "wait"
)

// Planned is a plan and the questions about it for each cluster. The specs are complete: the sender
// redacts what a cluster must not see.
type Planned struct {
	api.Plan
	Asks map[api.ClusterID][]api.WhyRequest
	Gone map[api.ClusterID][]api.InstanceID // instances that the cluster would lose
}

// Doubt is a cluster that answered that it cannot take an instance.
type Doubt = placement.Doubt

// Plan returns what applying the applications, one after the other, would do now. It changes none
// of them. doubts has, by instance, the clusters that answered that they cannot take it. The errors
// are those of Apply. The built-in plugin decides, even if an external scheduler is configured.
func (c *Core) Plan(now time.Time, tenant api.Tenant, apps []api.Application, doubts map[api.InstanceID][]Doubt) (Planned, error) {
	var ids []api.AppID
	var services []api.ServiceID
	var requests []applications.Request
	for i := range apps {
		r := applications.Request{Tenant: tenant, Spec: apps[i]}
		id := tenant.App(apps[i].Name, apps[i].Namespace)
		if err := addons.Belongs("application", string(id), c.addons.OwnerOfApp(id)); err != nil {
			return Planned{}, err
		}
		if err := c.checkSpec(&r); err != nil {
			return Planned{}, err
		}
		ids, requests = append(ids, id), append(requests, r)
		if c.apps.App(id) != nil {
			services = append(services, c.apps.Indexed(id)...)
		}
		for k := range apps[i].Services {
			m := &apps[i].Services[k]
			if s := id.Service(m.Name, m.Namespace); !slices.Contains(services, s) {
				services = append(services, s)
			}
		}
	}
	if err := c.tryAddresses(now, ids, apps); err != nil {
		return Planned{}, err
	}
	d := dryRun{c.copyFor(ids, services, doubts)}
	p := Planned{Asks: map[api.ClusterID][]api.WhyRequest{}, Gone: map[api.ClusterID][]api.InstanceID{}}
	for i := range requests {
		p.Apps = append(p.Apps, d.plan(&p, &requests[i]))
	}
	if len(p.Apps) == 1 {
		p.Revision = p.Apps[0].Revision
	}
	for _, id := range step.Keys(p.Asks) {
		age := now.Sub(c.clock.Real(c.clusters.Heard(id)))
		p.Clusters = append(p.Clusters, api.ClusterView{Cluster: id, Age: max(0, age).Seconds()})
	}
	return p, nil
}

// tryAddresses returns an error if the applications cannot have the addresses that they request.
func (c *Core) tryAddresses(now time.Time, ids []api.AppID, apps []api.Application) error {
	var tried []addressPlans
	defer func() {
		for _, t := range tried {
			t.undo(c.addresses)
		}
	}()
	for i, id := range ids {
		p, err := c.planAddresses(now, id, apps[i])
		if err != nil {
			return err
		}
		tried = append(tried, p)
	}
	return nil
}

// copyFor returns a core for a dry run with all clusters and the instances of the given services.
// Its cost grows with these instances; other data is shared and only read.
func (c *Core) copyFor(apps []api.AppID, services []api.ServiceID, doubts map[api.InstanceID][]Doubt) *Core {
	d := New(c.cfg)
	d.dry = true
	d.counter, d.clock, d.wall, d.now = c.counter, c.clock, c.wall, c.now
	d.volumes = c.volumes
	d.apps = c.apps.DryRun(apps, services)
	instances := func(yield func(applications.Instance) bool) {
		for _, s := range services {
			for in := range d.apps.EachOf(s) {
				if !yield(in) {
					return
				}
			}
		}
	}
	d.clusters = c.clusters.DryRun(func(yield func(api.ClusterID, api.InstanceID) bool) {
		for in := range instances {
			for _, at := range in.Clusters() {
				if !yield(at, in.ID) {
					return
				}
			}
		}
	})
	d.placement = c.placement.DryRun(services, allFacts(instances), doubts)
	for _, id := range apps {
		if d.apps.App(id) != nil {
			d.setApp(id, nil)
		}
	}
	return d
}

// dryRun is a copy of a core that is discarded.
type dryRun struct{ *Core }

// plan applies one application to the copy and returns the changes.
// plannedRuns is how many runs of a schedule a plan shows.
const plannedRuns = 3

func (d dryRun) plan(p *Planned, r *applications.Request) api.AppPlan {
	id := r.Tenant.App(r.Spec.Name, r.Spec.Namespace)
	out := api.AppPlan{ID: id, Action: PlanUpdate}
	var before api.Application
	if a := d.apps.App(id); a != nil {
		before, out.Revision = a.Written(), a.Revision
	} else {
		d.apps.Create(id, r.Tenant)
		out.Action = PlanCreate
	}
	had := d.instancesOf(id)
	d.rewrite(id, r)
	out.Changes = applications.Changes(before, d.apps.App(id).Written())
	for _, m := range d.apps.App(id).Spec.Services {
		if s := m.Schedule; s != nil {
			out.Schedules = append(out.Schedules, api.NextRuns{
				Service: id.Service(m.Name, m.Namespace), Cron: s.Cron, Times: cron.Next(s, d.wall, plannedRuns),
			})
		}
	}
	if out.Action == PlanUpdate && len(out.Changes) == 0 {
		out.Action = PlanNone
	}
	services := d.apps.ByUrgency(id)
	for _, s := range services {
		d.reconcile(s)
	}
	for _, i := range step.Keys(had) { // free the resources of instances that end
		was := had[i]
		if in, ok := d.apps.Instance(i); !was.Leaving && d.clusters.Known(was.Cluster) && (!ok || in.Leaving) {
			d.clusters.Vacate(was.Cluster, was.Spec)
			d.refresh(was.Cluster)
		}
	}
	for _, s := range services {
		for _, i := range d.apps.InstancesOf(s) {
			d.replace(i)
		}
	}
	for _, s := range services { // a plan shows the final state: searches are over
		for _, i := range d.apps.InstancesOf(s) {
			if d.placement.SkipSearch(d.facts(i)) {
				d.place(i)
			}
		}
	}
	has := d.instancesOf(id)
	out.Instances = d.compare(p, had, has)
	out.RollOuts = d.rollOuts(services, had, has)
	return out
}

// rollOuts returns how the services whose running instances get another SLA would be rolled out.
func (d dryRun) rollOuts(services []api.ServiceID, had, has map[api.InstanceID]applications.Instance) (out []api.RollOutPlan) {
	replaced := map[api.ServiceID]bool{}
	for id, was := range had {
		if is, ok := has[id]; ok && !is.Leaving && was.State == api.Running && was.SpecRev != is.SpecRev {
			replaced[id.Service()] = true
		}
	}
	for _, s := range services {
		if app, spec := d.apps.Service(s); replaced[s] {
			out = append(out, api.RollOutPlan{Service: s, Policy: spec.UpdatePolicy(app.Replicas[s]).String()})
		}
	}
	return out
}

// replace gives the instance the newest SLA without waiting for others or for the end of its old
// placement, because a plan shows the final state.
func (d dryRun) replace(id api.InstanceID) {
	in := d.apps.Get(id)
	if in.Leaving {
		return
	}
	if app, _ := d.apps.Service(id.Service()); in.SpecRev != app.SpecRevs[id.Service()] {
		d.update(id)
	}
	if d.apps.SkipStops(id) {
		d.place(id)
	}
	if in = d.apps.Get(id); in.Cluster == "" && !d.placement.Doubted(id) && in.State == api.Requested {
		d.place(id) // the resources that others freed may be enough
	}
}

func (d dryRun) instancesOf(app api.AppID) map[api.InstanceID]applications.Instance {
	out := map[api.InstanceID]applications.Instance{}
	for _, s := range d.apps.Services() {
		if s.App() == app {
			for in := range d.apps.EachOf(s) {
				out[in.ID] = in
			}
		}
	}
	return out
}

// compare returns the difference between two sets of instances, and adds the questions for clusters
// to p.
func (d dryRun) compare(p *Planned, had, has map[api.InstanceID]applications.Instance) (out []api.InstancePlan) {
	ids := map[api.InstanceID]bool{}
	for id, was := range had {
		if !was.Leaving { // an instance that is leaving is not part of the plan
			ids[id] = true
		}
	}
	for id := range has {
		if _, ok := had[id]; !ok {
			ids[id] = true
		}
	}
	for _, id := range step.Keys(ids) {
		was, existed := had[id]
		is, exists := has[id]
		v := api.InstancePlan{ID: id, Cluster: is.Cluster}
		stops := !exists || is.Leaving
		if was.Cluster != "" && (stops || is.Cluster != was.Cluster) {
			p.Gone[was.Cluster] = append(p.Gone[was.Cluster], id)
		}
		switch {
		case stops:
			v.Action, v.Cluster = PlanStop, was.Cluster
		case is.Cluster == "":
			v.Action = PlanWait
			why := d.placement.WhyNowhere(facts(&is))
			v.Why = &why
		case !existed || was.Cluster == "":
			v.Action = PlanPlace
		case was.SpecRev != is.SpecRev:
			v.Action = PlanReplace
		default:
			v.Action = PlanStay
		}
		if v.Action == PlanPlace || v.Action == PlanReplace {
			v.After = d.placement.Skipped(id).Seconds()
			if n := len(is.Placements); n > 0 {
				v.Score = is.Placements[n-1].Score
			}
			if v.Preempts = is.Preempts; !v.Preempts { // after preemption, only the cluster knows
				v.Headroom = d.placement.Headroom(facts(&is))
			}
			p.Asks[is.Cluster] = append(p.Asks[is.Cluster], api.WhyRequest{
				Instance: id, Spec: *is.Spec, Targets: d.assignment(&is, is.Cluster).Targets, Searched: is.Searched,
			})
		}
		out = append(out, v)
	}
	slices.SortStableFunc(out, func(a, b api.InstancePlan) int {
		return cmp.Or(strings.Compare(string(a.ID.Service()), string(b.ID.Service())), a.ID.Number()-b.ID.Number())
	})
	return out
}
