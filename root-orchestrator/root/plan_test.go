package root

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/addresses"
)

func (w *world) plan(app api.Application, doubts map[api.InstanceID][]Doubt) Planned {
	w.t.Helper()
	before, gen := w.c.counter.Last(), map[api.ClusterID]api.Generation{}
	for _, id := range w.c.clusters.IDs() {
		gen[id], _, _ = w.c.Desired(id)
	}
	p, err := w.c.Plan(w.now, "acme", []api.Application{app}, doubts)
	if err != nil {
		w.t.Fatal(err)
	}
	w.checkBooks()
	for _, id := range w.c.clusters.IDs() {
		if now, _, _ := w.c.Desired(id); now != gen[id] {
			w.t.Errorf("planning changed what %s is to have", id)
		}
	}
	if eff := w.do(Tick{}); len(eff.Save) > 0 || w.c.counter.Last() != before {
		w.t.Errorf("planning saved %+v", eff.Save)
	}
	return p
}

// actions returns the planned actions of the instances: "place a, wait".
func actions(p Planned) string {
	var out []string
	for _, i := range p.Apps[0].Instances {
		out = append(out, strings.TrimSpace(i.Action+" "+string(i.Cluster)))
	}
	return strings.Join(out, ", ")
}

func TestPlanEqualsTheResultOfApply(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].room = 2
	w.settle()
	app := application(3)
	p := w.plan(app, nil)
	if got := actions(p); got != "place a, place a, wait" || p.Apps[0].Action != PlanCreate || p.Revision != 0 {
		t.Errorf("a new one: %s, %+v", got, p.Apps[0])
	}
	if len(p.Asks["a"]) != 2 || len(p.Clusters) != 1 || p.Apps[0].Instances[2].Why == nil {
		t.Errorf("asks %+v of %+v", p.Asks, p.Clusters)
	}
	if got := p.Apps[0].Instances[0].Headroom; len(got) != 2 {
		t.Errorf("headroom %q", got)
	}
	if got := p.Apps[0].Changes; len(got) != 1 || got[0] != (api.FieldChange{Path: "web.prod", New: "3 instances"}) {
		t.Errorf("changes %+v", got)
	}
	w.must(Apply{Tenant: "acme", Spec: app})
	w.settle()
	if p := w.plan(app, nil); p.Apps[0].Action != PlanNone || actions(p) != "stay a, stay a, wait" || len(p.Asks) != 0 {
		t.Errorf("the same again: %s %+v", actions(p), p.Apps[0])
	}
	have, _ := w.c.App(shop)
	next := application(1, code("new"))
	next.Services[0].Memory = 50
	p = w.plan(next, nil)
	want := []api.FieldChange{
		{Path: "web.prod/code", New: "new"}, {Path: "web.prod/memory", Old: "100", New: "50"}, {Path: "web.prod/replicas", Old: "3", New: "1"},
	}
	if !slices.Equal(p.Apps[0].Changes, want) || p.Revision != have.Revision {
		t.Errorf("changes %+v at %d", p.Apps[0].Changes, p.Revision)
	}
	if got := actions(p); got != "replace a, stop a, stop" {
		t.Errorf("less of it: %s", got)
	}
	next.Services[0].Name = "db"
	p = w.plan(next, nil)
	if c := p.Apps[0].Changes; len(c) != 2 || c[0].Path != "db.prod" || c[1] != (api.FieldChange{Path: "web.prod", Old: "3 instances"}) {
		t.Errorf("another service: %+v", c)
	}
}

// An instance that a cluster cannot take goes to the next cluster.
func TestPlanAvoidsDoubtfulClusters(t *testing.T) {
	w := newWorld(t, "a", "b")
	app := application(1)
	first := w.plan(app, nil).Apps[0].Instances[0].Cluster
	doubts := map[api.InstanceID][]Doubt{web.Instance(0): {{Cluster: first}}}
	second := w.plan(app, doubts).Apps[0].Instances[0].Cluster
	if first == second || second == "" {
		t.Errorf("first %q then %q", first, second)
	}
	doubts[web.Instance(0)] = []Doubt{{Cluster: "a"}, {Cluster: "b"}}
	if got := actions(w.plan(app, doubts)); got != "wait" {
		t.Errorf("nobody can: %s", got)
	}
	w.must(Apply{Tenant: "acme", Spec: app})
	w.settle()
	in := w.instance(0).Cluster
	doubts[web.Instance(0)] = []Doubt{{Cluster: in}}
	if got := w.plan(application(1, code("new")), doubts).Apps[0].Instances[0]; got.Cluster == in || got.Action != PlanReplace {
		t.Errorf("it stays where it cannot: %+v", got)
	}
}

func TestPlanRefusesWhatApplyingRefuses(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.settle()
	taken := application(1, func(m *api.Microservice) { m.Addresses = &api.Addresses{RoundRobin: "10.30.7.7"} })
	w.must(Apply{Tenant: "acme", Spec: taken})
	other := taken
	other.Name = "other"
	planErr := func() error {
		_, err := w.c.Plan(w.now, "acme", []api.Application{other}, nil)
		return err
	}
	applied := w.do(Apply{Tenant: "acme", Spec: other}).Err
	if err := planErr(); err == nil || applied == nil || err.Error() != applied.Error() {
		t.Errorf("plan: %v, apply: %v", err, applied)
	}
	w.must(DeleteApp{App: shop})
	if _, err := w.c.Plan(w.now, "acme", []api.Application{taken}, nil); !errors.Is(err, api.ErrConflict) {
		t.Errorf("while it is being deleted: %v", err)
	}
}

// A plan is made outside of a step. It sees addresses whose rest is over as free, but it neither
// frees nor saves them.
func TestPlanLeavesRestingAddressesToTheNextApply(t *testing.T) {
	w := newWorld(t, "a")
	app := application(1, addressed(&api.Addresses{RoundRobin: "10.30.7.7"}))
	w.must(Apply{Tenant: "acme", Spec: app})
	w.settle()
	w.must(DeleteApp{App: shop})
	w.settle()
	w.now = w.now.Add(addresses.Rest + time.Minute)
	plan := func(tenant api.Tenant) {
		t.Helper()
		if _, err := w.c.Plan(w.now, tenant, []api.Application{app}, nil); err != nil {
			t.Errorf("plan of %s with an address whose rest is over: %v", tenant, err)
		}
	}
	saves := func(in Input) (n int) {
		for _, d := range w.must(in).Save {
			if d.Kind == kindAddress {
				n++
			}
		}
		return n
	}
	plan("rival")
	plan("acme")
	if n := saves(Tick{}); n != 0 {
		t.Errorf("the step after a plan saves %d addresses, want 0", n)
	}
	if n := saves(Apply{Tenant: "rival", Spec: app}); n == 0 {
		t.Error("the next apply does not delete the documents of addresses whose rest is over")
	}
}

// Applying has the planned result if nothing else changes.
func TestApplyDoesWhatThePlanSaid(t *testing.T) {
	for n := range 30 {
		w := newWorld(t, "a", "b", "c")
		w.twins["a"].room, w.twins["b"].room, w.twins["c"].room = n%4, (n/2)%5, n%3
		w.apply(n%7, code("old"))
		w.settle()
		app := application((n*5)%9, code("new"))
		if n%2 == 0 {
			app.Services[0].Constraints = []api.Constraint{{Type: api.ConstrainSpread, By: "cluster", Limit: 2}}
		}
		p := w.plan(app, nil)
		w.must(Apply{Tenant: "acme", Spec: app})
		placed := map[api.InstanceID]api.ClusterID{}
		for _, i := range p.Apps[0].Instances {
			if i.Action == PlanPlace {
				placed[i.ID] = i.Cluster
			}
		}
		for id, cl := range placed {
			if in, ok := w.c.Instance(id); !ok || in.Cluster != cl {
				t.Errorf("%d: %s was to be on %s: %+v", n, id, cl, in)
			}
		}
	}
}

func TestPlanOfAnExclusiveServiceIsAboutTheEnd(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(2, exclusive)
	w.settle()
	if got := actions(w.plan(application(2, exclusive, code("new")), nil)); got != "replace a, replace a" {
		t.Error(got)
	}
}

func TestADryRunDoesNotChangeTheOriginal(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(4)
	w.settle()
	before := w.instance(0)
	placements := slices.Clone(before.Placements)
	for range 3 {
		w.plan(application(2, code("x")), nil)
	}
	if now := w.instance(0); now.Epoch != before.Epoch || !slices.Equal(now.Placements, placements) || now.SpecRev != before.SpecRev {
		t.Errorf("a plan changed the instance: %+v", now)
	}
	w.settle()
	if w.running() != 4 {
		t.Errorf("%d run", w.running())
	}
}

// A service that replaces another one in a full cluster is planned there, because applying frees
// the resources. The cluster is asked with the instances that would end.
func TestInstancesThatEndFreeTheirCapacity(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].room = 2
	w.apply(2)
	w.settle()
	if w.running() != 2 {
		t.Fatalf("%d run", w.running())
	}
	app := application(2)
	app.Services[0].Name = "other"
	p := w.plan(app, nil)
	if got := actions(p); got != "place a, place a, stop a, stop a" {
		t.Errorf("the planned actions are %s, want place a, place a, stop a, stop a", got)
	}
	if got := p.Gone["a"]; len(got) != 2 || len(p.Asks["a"]) != 2 {
		t.Errorf("gone %v, asked %v", got, p.Asks)
	}
	more := application(3)
	if got := actions(w.plan(more, nil)); got != "stay a, stay a, wait" {
		t.Errorf("one more: %s", got)
	}
	w.must(Apply{Tenant: "acme", Spec: app, By: "alice"})
	w.pass(time.Minute)
	if w.running() != 2 {
		t.Errorf("%d run", w.running())
	}
}
