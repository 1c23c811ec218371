package root

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// connected returns an application whose service front has a link to pre. pre may run only in
// cluster here, front only in cluster far.
func connected(seconds float64, change ...func(front, pre *api.Microservice)) api.Application {
	return linked(20, append([]func(f, p *api.Microservice){func(f, p *api.Microservice) {
		f.Constraints = []api.Constraint{{Type: api.ConstrainClusters, Allowed: []string{"far"}}}
		p.Constraints = []api.Constraint{{Type: api.ConstrainClusters, Allowed: []string{"here"}}}
		f.Connectivity = []api.Connectivity{{Target: "pre", Constraints: []api.LinkConstraint{{Type: api.LinkLatency, Threshold: 20, ConvergenceTime: seconds}}}}
	}}, change...)...)
}

func hereAndFar(t *testing.T) *world {
	w := newWorld(t, "here", "far")
	w.twins["here"].at, w.twins["far"].at = at(0, 0), at(60, 9000)
	w.settle()
	return w
}

// placedAfter returns how long it takes until an instance runs.
func (w *world) placedAfter(id api.InstanceID, most time.Duration) time.Duration {
	w.t.Helper()
	for began := w.now; w.now.Sub(began) < most; w.round() {
		if w.record(id).State == api.Running {
			return w.now.Sub(began)
		}
		w.checkBooks()
	}
	why, _ := w.c.Why(id, w.now)
	w.t.Fatalf("%s does not run after %s: %s", id, most, why.Summary)
	return 0
}

func TestALinkIsViolatedWhenTheSearchIsOver(t *testing.T) {
	for name, first := range map[string]func(f, p *api.Microservice){
		"the one that has the link comes last": func(f, _ *api.Microservice) {},
		"the other end comes last": func(f, p *api.Microservice) {
			f.Constraints, p.Constraints = p.Constraints, f.Constraints
			*f, *p = *p, *f
			f.Name, p.Name = "front", "pre"
			p.Connectivity[0].Target = "front"
		},
		"exclusive": func(f, _ *api.Microservice) { f.Exclusive = true },
	} {
		t.Run(name, func(t *testing.T) {
			w := hereAndFar(t)
			app := connected(12, first)
			zero, one := 0, 1
			app.Services[0].Replicas = &zero
			w.must(Apply{Tenant: "acme", Spec: app})
			w.settle()
			app.Services[0].Replicas = &one
			if got := w.plan(app, nil).Apps[0].Instances; got[0].Action != PlanPlace || got[0].Cluster != "far" || got[0].After != 12 {
				t.Errorf("planned %+v, want it placed on far after 12 s", got[0])
			}
			w.must(Apply{Tenant: "acme", Spec: app})
			id, began := front.Instance(0), w.now
			w.settle()
			if got := w.where(id); got != "" {
				t.Fatalf("the instance is on %s at once, want a search", got)
			}
			why, _ := w.c.Why(id, w.now)
			if why.SearchingUntil != began.Add(12*time.Second) || !strings.Contains(why.Summary, "searching until 00:00:") || !strings.Contains(why.Instance.Detail, "searching until ") {
				t.Errorf("the search ends at %s, explained as %q and %q", why.SearchingUntil, why.Summary, why.Instance.Detail)
			}
			if c := why.Root.Causes; len(c) != 2 || !strings.Contains(c[1].Detail, "searching until") || strings.Contains(c[0].Detail, "searching") {
				t.Errorf("causes %+v, want the second to name the search", c)
			}
			left := 12*time.Second - w.now.Sub(began)
			if got := w.plan(app, nil).Apps[0].Instances[0]; got.Action != PlanPlace || got.After != left.Seconds() {
				t.Errorf("planned during the search: %+v, want it placed after %s", got, left)
			}
			if took := w.placedAfter(id, 20*time.Second); took < left-time.Second || took > left+4*time.Second {
				t.Errorf("the instance runs after %s, want %s", took, left)
			}
			if a := w.twins["far"].want[id]; !a.Searched {
				t.Errorf("the assignment %+v asks the cluster to search again", a)
			}
			w.restart()
			w.settle()
			w.checkBooks()
			if a := w.twins["far"].want[id]; w.where(id) != "far" || !a.Searched {
				t.Errorf("after a restart the instance is on %q with assignment %+v, want far and no search", w.where(id), a)
			}
		})
	}
}

// A cluster at an unknown distance refuses. When the search is over, it is asked again with
// Assignment.Searched set.
func TestAClusterIsAskedAgainWhenTheSearchIsOver(t *testing.T) {
	for _, alone := range []bool{false, true} {
		w := hereAndFar(t)
		w.twins["far"].at = nil
		w.twins["far"].near = true
		w.settle()
		app := connected(12, func(f, _ *api.Microservice) { f.Exclusive = alone })
		w.appliesInTurn(app)
		if a := w.twins["far"].want[front.Instance(0)]; a.Searched {
			t.Fatal("the first offer says that the search is over")
		}
		w.placedAfter(front.Instance(0), 15*time.Second)
		if a := w.twins["far"].want[front.Instance(0)]; !a.Searched {
			t.Error("the cluster was not told that the search is over")
		}
		tries := w.record(front.Instance(0)).Tries
		w.pass(5 * time.Minute)
		if in := w.record(front.Instance(0)); in.State != api.Running || in.Tries > tries {
			t.Errorf("the instance is %s, with %d and then %d tries; want it running without new tries", in.State, tries, in.Tries)
		}
	}
}

// Updating an instance that violates its link does not take it off its place for another search.
func TestAnUpdateDoesNotSearch(t *testing.T) {
	w := hereAndFar(t)
	app := connected(12)
	w.appliesInTurn(app)
	w.placedAfter(front.Instance(0), 20*time.Second)
	app.Services[0].Code = "new"
	if got := w.plan(app, nil).Apps[0].Instances[0]; got.Action != PlanReplace || got.Cluster != "far" || got.After != 0 {
		t.Errorf("planned %+v, want it replaced on far at once", got)
	}
	w.must(Apply{Tenant: "acme", Spec: app})
	if got := w.where(front.Instance(0)); got != "far" {
		t.Errorf("the instance is on %q, want far", got)
	}
	w.checkBooks()
}

// An explanation does not mention the search if it is over, or if only resources are missing.
func TestMissingCapacityIsNotExplainedAsASearch(t *testing.T) {
	w := hereAndFar(t)
	w.twins["far"].room = 0
	w.settle()
	app := connected(2)
	w.appliesInTurn(app)
	w.pass(10 * time.Second)
	why, _ := w.c.Why(front.Instance(0), w.now)
	if strings.Contains(why.Summary, "searching") || !strings.Contains(why.Summary, "vcpus") || strings.Contains(why.Summary, "latency") {
		t.Errorf("the summary is %q after the search, want it to name vcpus only", why.Summary)
	}
	if got := w.plan(app, nil).Apps[0].Instances[0]; got.Action != PlanWait {
		t.Errorf("planned %+v, want it to wait", got)
	}
	w.twins["far"].room = 5
	w.settle()
	if got := w.where(front.Instance(0)); got != "far" {
		t.Errorf("with room the instance is on %q, want far", got)
	}
}
