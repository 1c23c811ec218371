package root

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func onlyIn(c string) func(*api.Microservice) {
	return func(m *api.Microservice) {
		m.Constraints = []api.Constraint{{Type: api.ConstrainClusters, Allowed: []string{c}}}
	}
}

// withStopping returns a world in which cluster a has not confirmed the end of an
// exclusive placement, and cluster b runs the instance, which is not exclusive now.
func withStopping(t *testing.T, clusters ...api.ClusterID) *world {
	t.Helper()
	w := newWorld(t, clusters...)
	w.apply(1, exclusive, onlyIn("a"))
	w.settle()
	if w.on("a") != 1 {
		t.Fatal("it does not run on a")
	}
	w.apply(1, onlyIn("a"))
	w.apply(1, onlyIn("b"))
	if got := w.instance(0); got.Cluster != "b" {
		t.Fatalf("it is on %q, want b", got.Cluster)
	}
	w.checkBooks()
	return w
}

// hear delivers the reports of one cluster.
func (w *world) hear(id api.ClusterID) {
	w.t.Helper()
	for range 3 {
		w.now = w.now.Add(1100 * time.Millisecond)
		w.do(Tick{})
		w.twins[id].run()
		w.do(w.twins[id].report())
	}
}

// TestAnInstanceMadeExclusiveAgainWaitsForItsEarlierPlacement updates an exclusive instance to a non-exclusive
// one, which moves to another cluster at once, and back, before the first cluster has confirmed the
// end of the first placement (seeds 267 and 1268). It does so with and without a restart of the
// root.
func TestAnInstanceMadeExclusiveAgainWaitsForItsEarlierPlacement(t *testing.T) {
	never := func(*world) {}
	for name, at := range map[string]struct{ before, after func(*world) }{
		"without a restart":               {never, never},
		"restart while it is shared":      {(*world).restart, never},
		"restart when it is exclusive":    {never, (*world).restart},
		"restart before and after":        {(*world).restart, (*world).restart},
		"restart, and b is heard before":  {func(w *world) { w.restart(); w.hear("b") }, never},
		"two restarts while it is shared": {func(w *world) { w.restart(); w.hear("b"); w.restart() }, never},
	} {
		t.Run(name, func(t *testing.T) {
			w := withStopping(t, "a", "b")
			at.before(w)
			w.checkBooks()
			w.apply(1, exclusive, onlyIn("b"))
			at.after(w)
			w.hear("b")
			if got := w.instance(0); got.Cluster != "" {
				t.Fatalf("it is given to %q, and a may still run it, want Cluster ''", got.Cluster)
			}
			w.checkBooks()
			w.settle()
			if w.on("b") != 1 || w.running() != 1 {
				t.Errorf("%d run, %d of them on b", w.running(), w.on("b"))
			}
			w.checkBooks()
		})
	}
}

// TestDeletedInstanceIsKeptUntilItsExclusivePlacementsEnded deletes the application while an
// exclusive placement may still run. An instance of the same name must not start beside it, even
// after a restart of the root.
func TestDeletedInstanceIsKeptUntilItsExclusivePlacementsEnded(t *testing.T) {
	for name, ends := range map[string]func(*world){
		"the cluster confirms":     (*world).settle,
		"the cluster is forgotten": func(w *world) { delete(w.twins, "a"); w.must(RemoveCluster{"a"}) },
	} {
		t.Run(name, func(t *testing.T) {
			w := withStopping(t, "a", "b")
			w.must(DeleteApp{App: shop})
			w.hear("b")
			w.restart()
			w.hear("b")
			w.checkBooks()
			if got := w.instance(0); got.Cluster != "a" || !got.Leaving {
				t.Fatalf("it waits for %q (leaving %v), want a", got.Cluster, got.Leaving)
			}
			ends(w)
			w.checkBooks()
			if n := len(w.c.Instances("")) + len(w.c.Apps("")); n != 0 {
				t.Errorf("%d instances and applications are left, want none", n)
			}
		})
	}
}

// TestInstanceThatIsNowhereIsKeptUntilItsExclusivePlacementsEnded deletes an instance without a
// place while two clusters have not confirmed the end of exclusive placements.
func TestInstanceThatIsNowhereIsKeptUntilItsExclusivePlacementsEnded(t *testing.T) {
	w := withStopping(t, "a", "b")
	w.apply(1, exclusive, onlyIn("b"))
	if got := w.instance(0); got.Cluster != "" {
		t.Fatalf("it is given to %q, want Cluster ''", got.Cluster)
	}
	w.must(DeleteApp{App: shop})
	w.checkBooks()
	w.hear("a")
	if got := w.instance(0); got.Cluster != "b" || !got.Leaving {
		t.Fatalf("it waits for %q (leaving %v), want b", got.Cluster, got.Leaving)
	}
	w.checkBooks()
	w.restart()
	w.checkBooks()
	w.settle()
	if n := len(w.c.Instances("")) + len(w.c.Apps("")); n != 0 {
		t.Errorf("%d instances and applications are left, want none", n)
	}
}

// TestRemovingAClusterEndsTheWaitForAnExclusivePlacement removes the cluster that never confirms.
func TestRemovingAClusterEndsTheWaitForAnExclusivePlacement(t *testing.T) {
	w := withStopping(t, "a", "b")
	w.apply(1, exclusive, onlyIn("b"))
	w.restart()
	w.hear("b")
	delete(w.twins, "a")
	w.must(RemoveCluster{"a"})
	w.checkBooks()
	w.settle()
	if w.on("b") != 1 || w.running() != 1 {
		t.Errorf("%d run, %d of them on b", w.running(), w.on("b"))
	}
	w.restart()
	w.checkBooks()
}

// TestRecordsOfEarlierReleasesNameOneClusterToWaitFor restores records of a release that had only
// the field "vacating".
func TestRecordsOfEarlierReleasesNameOneClusterToWaitFor(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(1, exclusive, onlyIn("a"))
	w.settle()
	w.apply(1, exclusive, onlyIn("b"))
	for k, d := range w.disk {
		if d.Kind != kindInstance {
			continue
		}
		var rec map[string]any
		if err := json.Unmarshal(d.Data, &rec); err != nil {
			t.Fatal(err)
		}
		if rec["vacating"] != "a" {
			t.Fatalf("the record waits for %v, want a", rec["vacating"])
		}
		delete(rec, "stopping")
		d.Data, _ = json.Marshal(rec)
		w.disk[k] = d
	}
	w.restart()
	w.hear("b")
	w.checkBooks()
	if got := w.instance(0); got.Cluster != "" {
		t.Fatalf("it is given to %q, and a may still run it, want Cluster ''", got.Cluster)
	}
	w.settle()
	if w.on("b") != 1 || w.running() != 1 {
		t.Errorf("%d run, %d of them on b", w.running(), w.on("b"))
	}
	w.checkBooks()
}

// TestPlanOfAnExclusiveMoveIsAboutTheEnd plans moves of an exclusive instance. Applying them would
// wait for its end in the first cluster.
func TestPlanOfAnExclusiveMoveIsAboutTheEnd(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(1, exclusive, onlyIn("a"))
	w.settle()
	if got := actions(w.plan(application(1, exclusive, onlyIn("b")), nil)); got != "replace b" {
		t.Errorf("it is on a: %q, want replace b", got)
	}
	w = withStopping(t, "a", "b")
	if got := actions(w.plan(application(1, exclusive, onlyIn("b")), nil)); got != "replace b" {
		t.Errorf("it is on b, and ends on a: %q, want replace b", got)
	}
}
