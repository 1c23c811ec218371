package root

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

func budget(n int) func(*api.Microservice) {
	return func(m *api.Microservice) { m.Disruption = &api.Disruption{MaxUnavailable: &n} }
}

// requests has each cluster request a disruption of each of its instances.
func (w *world) requests() {
	n := api.Generation(100)
	for _, id := range step.Keys(w.twins) {
		for _, in := range step.Keys(w.twins[id].want) {
			n++
			w.twins[id].disrupts[in] = n
		}
	}
}

// permitted returns the instances whose present disruption their clusters may carry out.
func (w *world) permitted() (out []api.InstanceID) {
	for _, in := range w.records() {
		tw := w.twins[in.Cluster]
		if tw == nil {
			continue
		}
		if a := tw.want[in.ID]; a.Disrupts != 0 && a.Disrupts == tw.disrupts[in.ID] {
			out = append(out, in.ID)
		}
	}
	return out
}

func (w *world) end(id api.InstanceID) { w.twins[w.record(id).Cluster].disrupts[id] = 0 }

func TestDisruptionBudgetHoldsAcrossClusters(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.twins["a"].room, w.twins["b"].room = 2, 2
	w.apply(4, exclusive, budget(1))
	w.settle()
	if w.on("a") != 2 || w.on("b") != 2 || w.running() != 4 {
		t.Fatalf("%d instances in a and %d in b, %d run, want 2 in each", w.on("a"), w.on("b"), w.running())
	}
	for _, tw := range w.twins {
		for id, a := range tw.want {
			if a.MaxUnavailable == nil || *a.MaxUnavailable != 1 || a.Spec.Disruption != nil {
				t.Errorf("assignment of %s: budget %v, in its SLA %v, want 1 and none", id, a.MaxUnavailable, a.Spec.Disruption)
			}
		}
	}
	w.requests()
	seen := map[api.InstanceID]bool{}
	for range 4 {
		w.settle()
		now := w.permitted()
		if len(now) != 1 || seen[now[0]] {
			t.Fatalf("permitted are %v, want one other than those before", now)
		}
		w.restart()
		w.settle()
		if again := w.permitted(); len(again) != 1 || again[0] != now[0] {
			t.Fatalf("after a restart: permitted are %v, want %v", again, now)
		}
		seen[now[0]] = true
		w.end(now[0])
	}
	w.settle()
	w.checkBooks()
}

func TestUnavailableInstancesCountAgainstTheDisruptionBudget(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.twins["a"].room, w.twins["b"].room = 2, 2
	w.apply(4, exclusive, budget(1))
	w.settle()
	failed := step.Keys(w.twins["a"].want)[0]
	w.twins["a"].down[failed] = true
	w.settle()
	w.requests()
	w.twins["a"].disrupts[failed] = 0 // it needs no permission
	w.settle()
	if now := w.permitted(); len(now) > 0 {
		t.Errorf("an instance has failed: permitted are %v, want none", now)
	}
	w.twins["a"].down[failed] = false
	w.settle()
	now := w.permitted()
	if len(now) != 1 {
		t.Fatalf("all instances run: permitted are %v, want one", now)
	}

	// A cluster that stops while it carries out a disruption does not release the budget before its instances
	// run elsewhere.
	at := w.record(now[0]).Cluster
	w.twins[at].off = true
	w.pass(2 * time.Minute)
	if after := w.permitted(); len(after) != 1 || after[0] != now[0] && w.record(after[0]).Cluster == at {
		t.Errorf("while cluster %s is silent: permitted are %v, want no other instance than %v", at, after, now)
	}
}

func TestChangeOfTheDisruptionBudgetReplacesNothing(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(3, exclusive, budget(0))
	w.settle()
	before := w.record(web.Instance(0)).Epoch.Root()
	w.requests()
	w.settle()
	if now := w.permitted(); len(now) > 0 {
		t.Errorf("max_unavailable 0: permitted are %v, want none", now)
	}
	w.apply(3, exclusive, budget(2))
	w.settle()
	if now := w.permitted(); len(now) != 2 {
		t.Errorf("max_unavailable 2: permitted are %v, want two", now)
	}
	w.apply(3, exclusive)
	w.settle()
	for id, a := range w.twins["a"].want {
		if a.MaxUnavailable != nil {
			t.Errorf("without a budget, %s still has max_unavailable %d", id, *a.MaxUnavailable)
		}
	}
	if now := w.record(web.Instance(0)).Epoch.Root(); now != before {
		t.Errorf("epoch: got %d, want %d as before the changes of the budget", now, before)
	}
}
