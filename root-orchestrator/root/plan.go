package root

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// The actions of a plan.
const (
	PlanCreate  = "create" // an application
	PlanUpdate  = "update"
	PlanNone    = "none"
	PlanPlace   = "place" // an instance
	PlanReplace = "replace"
	PlanStop    = "stop"
	PlanStay    = "stay"
	PlanWait    = "wait"
)

// Planned is a plan and what each cluster is to be asked about its part of it.
// Specs are whole: whoever sends them leaves out what is none of a cluster's.
type Planned struct {
	api.Plan
	Asks map[api.ClusterID][]api.WhyRequest
	Gone map[api.ClusterID][]api.InstanceID // that the cluster has and would have no longer
}

// Doubt is a cluster that was asked about an instance and cannot take it. Searched says
// that it might have broken the instance's links.
type Doubt struct {
	Cluster  api.ClusterID
	Searched bool
}

// Plan is what applying the applications would do now, if nothing else changed:
// one after the other, reservations counted. It changes nothing. doubts names, by
// instance, clusters that were asked and cannot take it. The errors are those of
// Apply. The built-in plugin decides, even where another scheduler is asked.
func (c *Core) Plan(now time.Time, tenant api.Tenant, apps []api.Application, doubts map[api.InstanceID][]Doubt) (Planned, error) {
	var ids []api.AppID
	var services []api.ServiceID
	for i := range apps {
		id := tenant.App(apps[i].Name, apps[i].Namespace)
		a := c.apps[id]
		if a != nil && a.Leaving {
			return Planned{}, leavingApp(id)
		}
		ids = append(ids, id)
		if a != nil {
			services = append(services, step.Keys(a.Replicas)...)
		}
		for k := range apps[i].Services {
			m := &apps[i].Services[k]
			if s := id.Service(m.Name, m.Namespace); !slices.Contains(services, s) {
				services = append(services, s)
			}
		}
	}
	if err := c.tryAddresses(ids, apps); err != nil {
		return Planned{}, err
	}
	d := c.sketch(ids, services)
	d.doubts = doubts
	p := Planned{Asks: map[api.ClusterID][]api.WhyRequest{}, Gone: map[api.ClusterID][]api.InstanceID{}}
	for i := range apps {
		p.Apps = append(p.Apps, d.planApp(&p, Apply{Tenant: tenant, Spec: apps[i]}))
	}
	if len(p.Apps) == 1 {
		p.Revision = p.Apps[0].Revision
	}
	for _, id := range step.Keys(p.Asks) {
		age := now.Sub(c.clock.Real(c.clusters[id].lastHeard))
		p.Clusters = append(p.Clusters, api.ClusterView{Cluster: id, Age: max(0, age).Seconds()})
	}
	return p, nil
}

// tryAddresses reports whether all applications could have the addresses that
// they ask for.
func (c *Core) tryAddresses(ids []api.AppID, apps []api.Application) error {
	var tried []planned
	defer func() {
		for _, t := range tried {
			for _, p := range t {
				c.net.addresses.Undo(p)
			}
		}
	}()
	for i, id := range ids {
		p, err := c.planAddresses(id, apps[i])
		if err != nil {
			return err
		}
		tried = append(tried, p)
	}
	return nil
}

// planApp applies one application to a sketch, and says what became of it.
func (c *Core) planApp(p *Planned, in Apply) api.AppPlan {
	id := in.Tenant.App(in.Spec.Name, in.Spec.Namespace)
	out := api.AppPlan{ID: id, Action: PlanUpdate}
	a := c.apps[id]
	var before api.Application
	if a == nil {
		a = &app{ID: id, Tenant: in.Tenant, Created: c.wall}
		c.apps[id] = a
		out.Action = PlanCreate
	} else {
		before, out.Revision = a.spelledOut(), a.Revision
	}
	had := c.placesOf(id)
	c.rewrite(a, in)
	out.Changes = changes(before, a.spelledOut())
	if out.Action == PlanUpdate && len(out.Changes) == 0 {
		out.Action = PlanNone
	}
	for _, s := range c.servicesByUrgency(a) {
		c.reconcile(s)
	}
	for _, id := range step.Keys(had) { // what goes leaves its room to the others
		if was := had[id]; !was.leaving && was.cluster != "" && was.instance.Leaving {
			c.vacate(was)
		}
	}
	for _, s := range c.servicesByUrgency(a) {
		for _, id := range step.Keys(s.instances) {
			c.replaceNow(s.instances[id], s)
		}
	}
	for _, s := range c.servicesByUrgency(a) {
		for _, id := range step.Keys(s.instances) {
			c.endsSearch(s.instances[id])
		}
	}
	out.Instances = c.planned(p, had, c.placesOf(id))
	return out
}

// vacate counts the room of an instance that is to go as free in its cluster. On
// which of its nodes that is the root does not know: the cluster is asked.
func (c *Core) vacate(was place) {
	cl := c.clusters[was.cluster]
	if cl == nil {
		return
	}
	room := was.had.Needs()
	cl.Agg.Free, cl.Agg.Largest = cl.Agg.Free.Plus(room), cl.Agg.Largest.Plus(room)
	cl.Agg.Slots = slices.Clone(cl.Agg.Slots)
	for i := range cl.Agg.Slots {
		s := &cl.Agg.Slots[i]
		if s.Runtime == sched.RuntimeName(was.had.Virtualization) {
			s.Free, s.Largest = s.Free.Plus(room), s.Largest.Plus(room)
		}
	}
	c.refresh(cl)
}

// replaceNow gives the instance the newest spec without waiting for others, or for
// the end of what it was: a plan is about the end.
func (c *Core) replaceNow(in *instance, s *service) {
	if in == nil || in.Leaving {
		return
	}
	if in.SpecRev != s.app.SpecRevs[s.id] {
		c.update(in, s)
	}
	in.Stopping = nil
	if in.Vacating != "" {
		in.Vacating = ""
		c.tryPlace(in)
	}
	if in.Cluster == "" && len(c.doubts[in.ID]) == 0 && in.State == api.Requested {
		c.tryPlace(in) // what others leave may do
	}
}

// endsSearch places what is still searched a place for as if the search were over: a plan
// is about the end.
func (c *Core) endsSearch(in *instance) {
	if in == nil || in.Leaving || in.Cluster != "" || !c.searching(in) {
		return
	}
	in.after, in.until = in.until.Sub(c.now), c.now
	c.tryPlace(in)
}

// place is what a plan compares of an instance.
type place struct {
	*instance
	cluster api.ClusterID
	spec    api.Revision
	had     api.Microservice // its SLA then
	leaving bool
}

func (c *Core) placesOf(app api.AppID) map[api.InstanceID]place {
	out := map[api.InstanceID]place{}
	for id, s := range c.services {
		if id.App() != app {
			continue
		}
		for i, in := range s.instances {
			out[i] = place{in, in.Cluster, in.SpecRev, in.Spec, in.Leaving}
		}
	}
	return out
}

func (c *Core) planned(p *Planned, had, has map[api.InstanceID]place) (out []api.InstancePlan) {
	all := map[api.InstanceID]bool{}
	for id := range had {
		all[id] = !had[id].leaving // what goes anyway is not the plan's
	}
	for id := range has {
		all[id] = all[id] || had[id].instance == nil
	}
	for _, id := range step.Keys(all) {
		if !all[id] {
			continue
		}
		was, is := had[id], has[id]
		v := api.InstancePlan{ID: id, Cluster: is.cluster}
		if was.cluster != "" && (is.instance == nil || is.leaving || is.cluster != was.cluster) {
			p.Gone[was.cluster] = append(p.Gone[was.cluster], id)
		}
		switch {
		case is.instance == nil || is.leaving:
			v.Action, v.Cluster = PlanStop, was.cluster
		case is.cluster == "":
			v.Action = PlanWait
			req := c.request(is.instance)
			why := sched.Explain(c.table.Place(&req, c.plugin(is.instance), is.seed()))
			v.Why = &why
		case was.instance == nil || was.cluster == "":
			v.Action = PlanPlace
		case was.spec != is.spec:
			v.Action = PlanReplace
		default:
			v.Action = PlanStay
		}
		if v.Action == PlanPlace || v.Action == PlanReplace {
			v.After = is.after.Seconds()
		}
		if v.Action == PlanPlace || v.Action == PlanReplace {
			if n := len(is.Placements); n > 0 {
				v.Score = is.Placements[n-1].Score
			}
			if v.Displaces = is.displaces; !v.Displaces { // what others would leave is the cluster's to say
				v.Headroom = c.headroom(is.instance)
			}
			cl := c.clusters[is.cluster]
			p.Asks[is.cluster] = append(p.Asks[is.cluster], api.WhyRequest{
				Instance: id, Spec: is.Spec, Targets: c.assignment(is.instance, cl).Targets, Searched: is.Searched,
			})
		}
		out = append(out, v)
	}
	slices.SortStableFunc(out, func(a, b api.InstancePlan) int {
		if s := strings.Compare(string(a.ID.Service()), string(b.ID.Service())); s != 0 {
			return s
		}
		return a.ID.Number() - b.ID.Number()
	})
	return out
}

// headroom is what one more instance could still get in the cluster, of what this
// one asks for.
func (c *Core) headroom(in *instance) (out []string) {
	cand := c.table.Get(string(in.Cluster))
	runtime := sched.RuntimeName(in.Spec.Virtualization)
	var left api.Resources
	devices := map[string]int{}
	for _, r := range cand.Rooms {
		if slices.Contains(r.Runtimes, runtime) || slices.Contains(r.Runtimes, sched.Untold) {
			left = left.Max(r.Largest.Min(cand.Free))
			for kind, n := range r.Devices {
				devices[kind] = max(devices[kind], n)
			}
		}
	}
	needs := in.Spec.Needs()
	add := func(need int64, format string, args ...any) {
		if need > 0 {
			out = append(out, fmt.Sprintf(format, args...))
		}
	}
	add(needs.MilliCPU, "vcpus %g", float64(left.MilliCPU)/1000)
	add(needs.MemoryMB, "memory %d MiB", left.MemoryMB)
	add(needs.StorageMB, "storage %d MiB", left.StorageMB)
	add(needs.InMbit, "bandwidth_in %d Mbit/s", left.InMbit)
	add(needs.OutMbit, "bandwidth_out %d Mbit/s", left.OutMbit)
	for _, d := range in.Spec.NeedsDevices() {
		add(1, "%s %d", d.Name, devices[d.Name])
	}
	return out
}

// spelledOut is what is wanted of the application, with its numbers of instances.
func (a *app) spelledOut() api.Application {
	spec := a.Spec
	spec.Services = slices.Clone(a.Spec.Services)
	for i := range spec.Services {
		m := &spec.Services[i]
		n := a.Replicas[a.ID.Service(m.Name, m.Namespace)]
		m.Replicas = &n
	}
	return spec
}

// changes are the differences of two applications, in the later one's order; what
// it has no more comes last.
func changes(was, is api.Application) (out []api.FieldChange) {
	if was.Description != is.Description {
		out = append(out, api.FieldChange{Path: "application_desc", Old: was.Description, New: is.Description})
	}
	old := map[string]*api.Microservice{}
	for i := range was.Services {
		m := &was.Services[i]
		old[m.Name+"."+m.Namespace] = m
	}
	for i := range is.Services {
		m := &is.Services[i]
		name := m.Name + "." + m.Namespace
		if before := old[name]; before != nil {
			out = append(out, fieldChanges(name, before, m)...)
		} else {
			out = append(out, api.FieldChange{Path: name, New: counted(m)})
		}
		delete(old, name)
	}
	for _, name := range step.Keys(old) {
		out = append(out, api.FieldChange{Path: name, Old: counted(old[name])})
	}
	return out
}

func counted(m *api.Microservice) string {
	if *m.Replicas == 1 {
		return "1 instance"
	}
	return strconv.Itoa(*m.Replicas) + " instances"
}

func fieldChanges(service string, was, is *api.Microservice) (out []api.FieldChange) {
	a, b := reflect.ValueOf(*was), reflect.ValueOf(*is)
	for i := range a.NumField() {
		name, _, _ := strings.Cut(a.Type().Field(i).Tag.Get("json"), ",")
		if name == "microserviceID" {
			continue
		}
		if x, y := shown(a.Field(i)), shown(b.Field(i)); x != y {
			out = append(out, api.FieldChange{Path: service + "/" + name, Old: x, New: y})
		}
	}
	return out
}

// shown is a field's value for people: nothing where it says nothing.
func shown(v reflect.Value) string {
	switch {
	case v.Kind() == reflect.Pointer && !v.IsNil():
		return shown(v.Elem())
	case v.Kind() == reflect.String:
		return v.String()
	case v.Kind() == reflect.Int: // 0 instances are a number
	case v.IsZero():
		return ""
	}
	b, err := json.Marshal(v.Interface())
	if err != nil {
		panic("encode a field of an SLA: " + err.Error()) // plain fields: our bug
	}
	return string(b)
}
