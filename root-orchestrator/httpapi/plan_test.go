package httpapi_test

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/rights"
	"github.com/treeline-edge/treeline/root-orchestrator/httpapi"
)

func (r *rig) plan(token, sla string) (int, api.Plan, string) {
	r.t.Helper()
	status, _, text := r.raw("POST", "/v1/apps:plan", token, sla)
	var p api.Plan
	if status == 200 {
		check(r.t, json.Unmarshal([]byte(text), &p))
	}
	return status, p, text
}

// clusterPlans is a cluster's answer about instances of acme/shop.prod.web.v1.
func clusterPlans(plans ...api.InstancePlan) string {
	return httpAnswer(200, api.ClusterPlan{Instances: plans})
}

func TestPlanAsksTheClustersThatWouldGetSomething(t *testing.T) {
	r := newRig(t)
	boss := r.user("acme/boss", rights.Admin)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	r.clusters.answers["POST /v1/plan"] = clusterPlans(api.InstancePlan{Action: "place", Node: "n7", Headroom: []string{"memory 3 GiB"}})
	sla := strings.Replace(slaOf("shop", 1), `"memory":64`, `"memory":64,"environment":["TOKEN=secret"],"storage":7`, 1)

	status, p, text := r.plan(boss, sla)
	if status != 200 || len(p.Apps) != 1 || p.Apps[0].Action != "create" {
		t.Fatalf("plan: status %d, body %s, want one application to create", status, text)
	}
	i := p.Apps[0].Instances[0]
	if i.Action != "place" || i.Cluster != "munich" || i.Node != "n7" || !slices.Equal(i.Headroom, []string{"memory 3 GiB"}) {
		t.Errorf("the planned instance is %+v, want n7 of munich with 3 GiB of headroom", i)
	}
	if len(p.Clusters) != 1 || !p.Clusters[0].Asked || p.Clusters[0].Error != "" {
		t.Errorf("the clusters of the plan are %+v, want one that answered", p.Clusters)
	}
	if strings.Contains(r.clusters.bodies, "secret") || !strings.Contains(r.clusters.bodies, `"storage":7`) {
		t.Errorf("the cluster is told %s", r.clusters.bodies)
	}
	if status, p, _ = r.plan(dev, sla); status != 200 || p.Apps[0].Instances[0].Node != "" || len(p.Apps[0].Instances[0].Headroom) == 0 {
		t.Errorf("a developer reads %d %+v", status, p.Apps)
	}
	if apps, _, err := r.client(boss).Apps(t.Context(), listAll); err != nil || len(apps) != 0 {
		t.Errorf("planning applied something: %v %v", apps, err)
	}
}

func TestPlanNamesPreemptedInstancesToUsersWhoMaySeeThem(t *testing.T) {
	r := newRig(t)
	boss := r.user("acme/boss", rights.Admin)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	r.clusters.answers["POST /v1/plan"] = clusterPlans(api.InstancePlan{
		Action: "place", Node: "n7", Preempts: true, Preempted: []api.InstanceID{"acme/old.prod.web.v1#0", "rival/shop.prod.web.v1#0"}, Others: 1,
	})
	for who, want := range map[string]api.InstancePlan{
		boss: {Node: "n7", Preempted: []api.InstanceID{"acme/old.prod.web.v1#0", "rival/shop.prod.web.v1#0"}, Others: 1},
		dev:  {Preempted: []api.InstanceID{"acme/old.prod.web.v1#0"}, Others: 2},
	} {
		status, p, text := r.plan(who, slaOf("shop", 1))
		if status != 200 {
			t.Fatal(text)
		}
		got := p.Apps[0].Instances[0]
		if !got.Preempts || got.Node != want.Node || !slices.Equal(got.Preempted, want.Preempted) || got.Others != want.Others {
			t.Errorf("%+v, want %+v", got, want)
		}
	}
}

// A plan limits the search time that a cluster reports to the maximum of an SLA.
func TestPlanSaysHowLongAClusterSearches(t *testing.T) {
	r := newRig(t)
	boss := r.user("acme/boss", rights.Admin)
	r.join("munich", "acme")
	for says, want := range map[float64]float64{2.5: 2.5, 0: 0, -7: 0, 1e15: api.MaxConvergence} {
		r.clusters.answers["POST /v1/plan"] = clusterPlans(api.InstancePlan{Action: "place", Node: "n7", After: says})
		_, p, text := r.plan(boss, slaOf("shop", 1))
		if got := p.Apps[0].Instances[0]; got.After != want || got.Action != "place" {
			t.Errorf("it says %g s, and the plan %g s, want %g s: %s", says, got.After, want, text)
		}
	}
}

func TestPlanGoesOnToTheNextCluster(t *testing.T) {
	r := newRig(t)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	r.join("osaka", "acme")
	short := api.Rejection{Candidate: "n7", Constraint: "labels", Need: "disk=ssd", Have: "disk=hdd", Shortfall: 1}
	r.clusters.answers["POST /v1/plan"] = clusterPlans(api.InstancePlan{Action: "wait", Why: &api.Explanation{
		Considered: 1, Causes: []api.Cause{{Constraint: "labels", Count: 1}}, Candidates: []api.Rejection{short}, Nearest: &short,
	}})
	status, p, text := r.plan(dev, slaOf("shop", 1))
	if status != 200 {
		t.Fatalf("plan: status %d, body %s, want 200", status, text)
	}
	i := p.Apps[0].Instances[0]
	if i.Action != "wait" || i.Cluster == "" || i.Why == nil || i.Why.Nearest == nil || i.Why.Nearest.Constraint != "labels" {
		t.Errorf("both refuse: %+v", i)
	}
	if strings.Contains(text, "n7") {
		t.Errorf("a node is named to who may not see it: %s", text)
	}
	if n := len(r.clusters.asked); n != 2 || len(p.Clusters) != 2 || !p.Clusters[0].Asked {
		t.Errorf("%q were asked, shown are %+v", r.clusters.asked, p.Clusters)
	}
}

func TestPlanWithoutItsClustersIsTheRoots(t *testing.T) {
	r := newRig(t)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	r.clusters.silent = "munich"
	status, p, text := r.plan(dev, slaOf("shop", 2))
	if status != 200 || p.Apps[0].Instances[1].Cluster != "munich" || len(p.Apps[0].Instances[1].Headroom) == 0 {
		t.Fatalf("plan: status %d, body %s, want the second instance in munich with headroom", status, text)
	}
	if v := p.Clusters[0]; v.Asked || v.Error == "" {
		t.Errorf("the cluster of the plan is %+v, want it not asked, with an error", v)
	}
	r.clusters.silent = ""
	r.clusters.answers["POST /v1/plan"] = clusterPlans() // without instances
	if _, p, _ = r.plan(dev, slaOf("shop", 2)); p.Clusters[0].Asked || p.Apps[0].Instances[1].Cluster != "munich" {
		t.Errorf("an answer of another length counts: %+v", p)
	}
}

func TestPlanRefusesWhatApplyRefuses(t *testing.T) {
	r := newRig(t)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	viewer := r.user("rival/olga", rights.ApplicationProvider)
	for name, tt := range map[string]struct{ token, path, sla string }{
		"malformed":      {dev, "", "{"},
		"faulty":         {dev, "", strings.Replace(slaOf("shop", 1), `"memory":64`, `"memory":-1,"bogus":1`, 1)},
		"another tenant": {viewer, "?tenant=acme", slaOf("shop", 1)},
		"no tenant":      {dev, "?tenant=nobody", slaOf("shop", 1)},
		"nobody":         {"", "", slaOf("shop", 1)},
	} {
		as, _, applied := r.raw("PUT", "/v1/apps"+tt.path, tt.token, tt.sla)
		ps, _, planned := r.raw("POST", "/v1/apps:plan"+tt.path, tt.token, tt.sla)
		a, p := problemIn(t, applied), problemIn(t, planned)
		if as < 400 || as != ps || a.Detail != p.Detail || !slices.Equal(a.Errors, p.Errors) {
			t.Errorf("%s: apply says %d %s, plan %d %s", name, as, applied, ps, planned)
		}
	}
}

func TestPlanIsAppliedAsItWasOrNotAtAll(t *testing.T) {
	r := newRig(t)
	dev := r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	r.apply("acme", "shop", 1)
	_, p, _ := r.plan(dev, slaOf("shop", 2))
	tag := `"` + jsonText(p.Revision) + `"`
	if status, _, text := r.raw("PUT", "/v1/apps", dev, slaOf("shop", 2), "If-Match", tag); status != 200 {
		t.Errorf("fresh: %d %s", status, text)
	}
	if status, _, text := r.raw("PUT", "/v1/apps", dev, slaOf("shop", 3), "If-Match", tag); status != 412 {
		t.Errorf("stale: %d %s", status, text)
	}
}

func jsonText(v any) string {
	b, _ := json.Marshal(v)
	return string(b)
}

// A cluster that does not have an instance gets only the fields of its SLA that placement depends
// on. Each new field must be listed as one kind or the other.
func TestEveryFieldIsForPlacingOrKeptBack(t *testing.T) {
	kept := []string{"ID", "Code", "Cmd", "Disruption", "Environment", "Labels", "MaxAttempts", "OneShot", "Platform", "Replicas", "StopGrace", "Update"}
	full := reflect.New(reflect.TypeFor[api.Microservice]()).Elem()
	fill(full)
	got := reflect.ValueOf(*httpapi.PlacementSpec(full.Interface().(api.Microservice)))
	for i := range got.NumField() {
		name := got.Type().Field(i).Name
		if back := slices.Contains(kept, name); got.Field(i).IsZero() != back {
			t.Errorf("%s: kept back is %v", name, got.Field(i).IsZero())
		}
	}
}

func fill(v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i))
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
	case reflect.String:
		v.SetString("x")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float64:
		v.SetFloat(1)
	case reflect.Int, reflect.Int64:
		v.SetInt(1)
	}
}

func TestPlanShowsTheScalingThatAnApplyChanges(t *testing.T) {
	r := newRig(t)
	boss, dev := r.user("acme/boss", rights.Admin), r.user("acme/dora", rights.ApplicationProvider)
	r.join("munich", "acme")
	sla := func(high string) string {
		return strings.Replace(slaOf("shop", 1), `"replicas":1`, `"scale":{"min":0,"max":`+high+`,"cpu":70}`, 1)
	}
	if status, p, text := r.plan(dev, sla("2")); status != 200 || len(p.Apps[0].Scaling) != 0 {
		t.Fatalf("plan of a new service: %d %s", status, text)
	}
	if status, _, text := r.raw("PUT", "/v1/apps", dev, sla("2")); status != 200 {
		t.Fatalf("apply: %d %s", status, text)
	}
	load := 12.5
	now := api.ScaleStanding{Assigned: 2, Awake: 1, Running: 1, Metrics: []api.ScaleMetric{{Name: "cpu", Unit: "%", Target: 70, Value: &load, Wants: 1}}}
	r.clusters.answers["GET /v1/instances/acme~shop.prod.web.v1~0/why"] = httpAnswer(200, api.Explanation{
		Scale: &now, Candidates: []api.Rejection{{Candidate: "n7"}},
	})
	for _, who := range []string{boss, dev} {
		status, p, text := r.plan(who, sla("3"))
		want := []api.ScalingNow{{Service: "acme/shop.prod.web.v1", Cluster: "munich", Now: &now}}
		if status != 200 || p.Apps[0].Action != "update" || !reflect.DeepEqual(p.Apps[0].Scaling, want) {
			t.Errorf("plan: %d %s", status, text)
		}
	}
	r.clusters.silent = "munich"
	if _, p, text := r.plan(dev, sla("3")); len(p.Apps[0].Scaling) != 1 || p.Apps[0].Scaling[0].Now != nil {
		t.Errorf("plan without its cluster: %s", text)
	}
}
