package root

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
)

// violated makes a cluster report whether the place of instance #n violates its SLA.
func (w *world) violated(id api.ClusterID, n int, yes bool) {
	w.twins[id].violated[web.Instance(n)] = yes
}

func (w *world) instance(n int) applications.Instance {
	w.t.Helper()
	return w.record(web.Instance(n))
}

// placedOn returns a world in which one instance runs on cluster a, and b has free resources.
func placedOn(t *testing.T, change ...func(*api.Microservice)) *world {
	w := newWorld(t, "a")
	w.apply(1, change...)
	w.settle()
	w.join("b", 10)
	if w.on("a") != 1 || w.running() != 1 {
		t.Fatalf("%d instances run, %d on a, want one", w.running(), w.on("a"))
	}
	return w
}

func TestViolatedInstanceRunsElsewhereBeforeItStops(t *testing.T) {
	w := placedOn(t)
	before := w.instance(0).Epoch
	w.twins["b"].slow = true
	w.violated("a", 0, true)
	w.settle()
	in := w.instance(0)
	if len(w.twins["a"].want) != 1 || len(w.twins["b"].want) != 1 {
		t.Fatalf("a is assigned %d instances and b %d, want one each", len(w.twins["a"].want), len(w.twins["b"].want))
	}
	if in.Cluster != "a" || in.State != api.Running || in.Epoch.Root() != before.Root() || in.Violated == "" {
		t.Errorf("during the trial it is %s on %s with epoch %s, violating %q; want it running on a", in.State, in.Cluster, in.Epoch, in.Violated)
	}
	w.checkBooks()
	w.restart()
	w.settle()
	w.checkBooks()
	w.twins["b"].slow = false
	w.settle()
	in = w.instance(0)
	if len(w.twins["a"].want) != 0 || in.Cluster != "b" || in.State != api.Running || in.Epoch <= before || in.Violated != "" || in.Next != nil {
		t.Errorf("after the trial it is %s on %s with epoch %s, and a is assigned %d; want it running on b only", in.State, in.Cluster, in.Epoch, len(w.twins["a"].want))
	}
	w.checkBooks()
}

func TestExclusiveInstanceIsNeverInTwoPlaces(t *testing.T) {
	w := placedOn(t, exclusive)
	w.violated("a", 0, true)
	for range 6 {
		w.round()
		if len(w.twins["a"].want)+len(w.twins["b"].want) > 1 || w.instance(0).Next != nil {
			t.Fatal("two clusters are assigned an exclusive instance")
		}
	}
	if w.on("b") != 1 {
		t.Error("the instance has not moved to b")
	}
}

func TestTrialEndsWhenItsClusterRefuses(t *testing.T) {
	w := placedOn(t)
	w.twins["b"].full = true
	w.violated("a", 0, true)
	w.settle()
	in := w.instance(0)
	if in.Next != nil || in.Cluster != "a" || len(w.twins["b"].want) != 0 {
		t.Errorf("it is on %s with second placement %+v, want a and none", in.Cluster, in.Next)
	}
	why, _ := w.c.Why(in.ID, w.now)
	if !slices.ContainsFunc(why.Clusters, func(v api.ClusterWhy) bool { return v.Cluster == "b" }) {
		t.Errorf("no refusal by b in %+v", why.Clusters)
	}
	w.join("c", 10)
	w.settle()
	if w.on("c") != 1 || w.running() != 1 {
		t.Error("the instance did not move to c after b refused")
	}
	w.checkBooks()
}

func TestATrialEndsWhenTheViolationEnds(t *testing.T) {
	w := onTrial(t)
	w.violated("a", 0, false)
	w.settle()
	in := w.instance(0)
	if in.Next != nil || in.Cluster != "a" || in.State != api.Running || len(w.twins["b"].want) != 0 || in.Violated != "" {
		t.Errorf("it is %s on %s with second placement %+v, want it running on a and none", in.State, in.Cluster, in.Next)
	}
	w.checkBooks()
}

// onTrial returns a world with an instance on cluster a, whose second placement on b does not run
// yet.
func onTrial(t *testing.T) *world {
	t.Helper()
	w := placedOn(t)
	w.twins["b"].slow = true
	w.violated("a", 0, true)
	w.settle()
	return w
}

func TestTrialTakesOverWhenTheFirstPlaceIsLost(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"silent":    func(w *world) { w.twins["a"].off = true; w.pass(40 * time.Second) },
		"forgotten": func(w *world) { w.must(RemoveCluster{"a"}); delete(w.twins, "a") },
		"fails": func(w *world) {
			for rev := range api.Revision(1000) {
				w.twins["a"].bad[rev] = true
			}
			w.violated("a", 0, false)
			w.settle()
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := onTrial(t)
			lose(w)
			w.checkBooks()
			if in := w.instance(0); name != "fails" && (in.Cluster != "b" || in.Next != nil) {
				t.Errorf("it is on %s with second placement %+v, want b and none", in.Cluster, in.Next)
			}
			w.twins["b"].slow = false
			w.settle()
			if w.running() != 1 && name != "fails" {
				t.Errorf("%d instances run, want one", w.running())
			}
			w.checkBooks()
		})
	}
}

func TestTrialEndsWithItsCluster(t *testing.T) {
	for name, lose := range map[string]func(*world){
		"silent":    func(w *world) { w.twins["b"].off = true; w.pass(40 * time.Second) },
		"forgotten": func(w *world) { w.must(RemoveCluster{"b"}); delete(w.twins, "b") },
	} {
		t.Run(name, func(t *testing.T) {
			w := onTrial(t)
			lose(w)
			w.checkBooks()
			if in := w.instance(0); in.Cluster != "a" || in.Next != nil || in.State != api.Running {
				t.Errorf("it is %s on %s with second placement %+v, want it running on a and none", in.State, in.Cluster, in.Next)
			}
		})
	}
}

func TestInstanceThatLeavesLeavesItsTrial(t *testing.T) {
	for _, in := range []Input{Scale{Service: web, Replicas: 0}, DeleteApp{App: shop}} {
		w := onTrial(t)
		w.must(in)
		w.checkBooks()
		w.settle()
		if len(w.twins["a"].want)+len(w.twins["b"].want)+len(w.c.Instances("")) != 0 {
			t.Errorf("%T: assignments or instances are left", in)
		}
	}
}

func TestNewSLAEndsATrial(t *testing.T) {
	w := onTrial(t)
	w.violated("a", 0, false)
	w.apply(1, code("new"))
	w.checkBooks()
	w.settle()
	if len(w.twins["a"].want)+len(w.twins["b"].want) != 1 {
		t.Error("two clusters are assigned the instance after an update")
	}
}

func TestMovesAreBounded(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d", "e", "f", "g", "h")
	w.apply(1)
	w.settle()
	seen := map[api.ClusterID]bool{}
	begin := w.now
	for w.now.Sub(begin) < 50*time.Minute {
		at := w.instance(0).Cluster
		if seen[at] = true; w.twins[at] != nil {
			w.violated(at, 0, true)
		}
		w.round()
		w.now = w.now.Add(10 * time.Second)
		for id, tw := range w.twins {
			if id != w.instance(0).Cluster {
				delete(tw.violated, web.Instance(0))
			}
		}
	}
	if n := len(seen); n != 5 {
		t.Errorf("in 50 minutes it was on %d clusters, want 5", n)
	}
	if n := len(w.instance(0).Moves); n != 4 {
		t.Errorf("%d moves are kept, want 4", n)
	}
	w.pass(11 * time.Minute)
	if n := len(w.instance(0).Placements); n < 6 {
		t.Errorf("%d placements after the hour, want at least 6: it may move again", n)
	}
}

// Moves within a cluster count, and the next cluster is informed about them.
func TestMovesOfBothTiersCountTogether(t *testing.T) {
	w := placedOn(t)
	in := w.instance(0)
	ago := func(m ...int) (out []time.Time) {
		for _, m := range m {
			out = append(out, w.now.Add(-time.Duration(m)*time.Minute))
		}
		return out
	}
	w.twins["a"].moves = map[api.InstanceID][]time.Time{in.ID: ago(50, 40, 30, 20)}
	w.violated("a", 0, true)
	w.pass(9 * time.Minute)
	if in = w.instance(0); in.Next != nil || in.Cluster != "a" {
		t.Fatal("the instance moves a fifth time within the hour")
	}
	w.restart()
	w.pass(2 * time.Minute)
	in = w.instance(0)
	if in.Cluster != "b" {
		t.Fatalf("the instance is on %s an hour after its first move, want b", in.Cluster)
	}
	if n := len(w.twins["b"].want[in.ID].Moves); n != 4 {
		t.Errorf("its cluster is told about %d moves, want 4", n)
	}
	w.twins["b"].moves = map[api.InstanceID][]time.Time{in.ID: make([]time.Time, 1000)}
	for i := range 1000 {
		w.twins["b"].moves[in.ID][i] = w.now.Add(time.Duration(i) * time.Hour) // a false report
	}
	w.pass(time.Hour)
	if n := len(w.instance(0).Moves); n > 1 {
		t.Errorf("%d moves are kept, want at most 1", n)
	}
}
