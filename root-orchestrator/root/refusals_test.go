package root

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// refusing returns a world of clusters that have free resources and refuse for a constraint that
// the root cannot check.
func refusing(t *testing.T, clusters int, constraint string) *world {
	w := newWorld(t)
	for i := range clusters {
		tw := w.enter(api.ClusterID(fmt.Sprintf("c%03d", i)), 20)
		tw.full, tw.lacks = true, constraint
	}
	w.settle()
	return w
}

func (w *world) offers() (n int) {
	for _, in := range w.c.Instances("") {
		n += in.Tries
	}
	return n
}

func TestOnlyTheProbeRetriesARefusingCluster(t *testing.T) {
	for constraint, later := range map[string]int{sched.ConstraintLabels: 1, sched.ConstraintMemory: 1} {
		const clusters, replicas, most = 12, 20, 10 // a pause of 2 s that doubles nine times
		w := refusing(t, clusters, constraint)
		w.apply(replicas)
		w.pass(10 * time.Minute)
		first := w.offers()
		if first > replicas+clusters*most {
			t.Errorf("%s: %d offers in ten minutes, want at most %d", constraint, first, replicas+clusters*most)
		}
		w.pass(10 * time.Minute)
		if n := w.offers() - first; n > clusters*later {
			t.Errorf("%s: %d offers in the next ten minutes, want at most %d", constraint, n, clusters*later)
		}
		for _, id := range w.c.apps.Instances() {
			why, _ := w.c.Why(id, w.now)
			if len(why.Clusters) != clusters || why.Clusters[0].Answer.Causes[0].Constraint != constraint || why.NextTry.IsZero() {
				t.Fatalf("%s: %s has the answers of %d clusters and its next try at %s, want %d answers and a time", constraint, id, len(why.Clusters), why.NextTry, clusters)
			}
			if why.Root.Considered != clusters || len(why.Root.Causes) != 1 || why.Root.Causes[0].Constraint != sched.ConstraintAvoid {
				t.Fatalf("%s: the root explains %+v, want %d clusters to be avoided", constraint, why.Root, clusters)
			}
		}
		w.checkBooks()
	}
}

// A cluster that has not accepted an instance gets one offer at a time.
func TestSiblingsAskOneAtATime(t *testing.T) {
	const clusters, replicas = 30, 15
	w := refusing(t, clusters, sched.ConstraintLabels)
	w.apply(replicas)
	w.pass(2 * time.Second)
	asked := map[api.ClusterID]int{}
	for _, in := range w.records() {
		for _, p := range in.Placements[1:] { // the first offer was before any refusal
			asked[p.Cluster]++
		}
	}
	for id, n := range asked {
		if n > 1 {
			t.Errorf("%s was asked %d times at once, want once", id, n)
		}
	}
}

func TestAChangedClusterIsAskedAgain(t *testing.T) {
	for name, tt := range map[string]struct {
		constraint string
		change     func(*world, *twin)
		asked      bool
	}{
		"a node comes":            {sched.ConstraintLabels, func(_ *world, tw *twin) { tw.more = 1 }, true},
		"room comes, for labels":  {sched.ConstraintLabels, func(_ *world, tw *twin) { tw.room++ }, false},
		"room comes":              {sched.ConstraintMemory, func(_ *world, tw *twin) { tw.room++ }, true},
		"it moves, for labels":    {sched.ConstraintLabels, func(_ *world, tw *twin) { tw.at = at(7, 70) }, false},
		"it moves":                {sched.ConstraintLatency, func(_ *world, tw *twin) { tw.at = at(7, 70) }, true},
		"it starts anew":          {sched.ConstraintLabels, func(_ *world, tw *twin) { tw.boot, tw.seq = 2, 0 }, true},
		"the SLA changes":         {sched.ConstraintLabels, func(w *world, _ *twin) { w.apply(5, near20, exclusive, code("new")) }, true},
		"nothing does":            {sched.ConstraintLabels, func(*world, *twin) {}, false},
		"nothing does, with room": {sched.ConstraintMemory, func(*world, *twin) {}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := refusing(t, 1, tt.constraint)
			tw := w.twins["c000"]
			w.apply(5, near20, exclusive) // a non-exclusive instance stays with the cluster that hands it back
			w.pass(15 * time.Minute)
			before := w.offers()
			tt.change(w, tw)
			w.settle()
			w.settle()
			if got := w.offers() > before; got != tt.asked {
				t.Fatalf("the cluster was asked again: %v, want %v", got, tt.asked)
			}
			if tt.asked && name != "the SLA changes" {
				if n := w.offers() - before; n > 3 {
					t.Errorf("%d offers, want at most 3", n)
				}
			}
			tw.full, tw.more = false, tw.more+1
			w.settle()
			w.settle()
			if n := w.running(); n != 5 {
				t.Errorf("%d instances run once the cluster accepts them, want 5", n)
			}
			w.checkBooks()
		})
	}
}

// near20 limits the latency to a user, so that the positions of clusters matter.
func near20(m *api.Microservice) {
	m.Constraints = []api.Constraint{{Type: api.ConstrainLatency, Target: "198.51.100.7", Threshold: 20}}
}

// If the probe is removed before its cluster has answered, another instance becomes the probe.
func TestARemovedProbeIsReplaced(t *testing.T) {
	w := refusing(t, 2, sched.ConstraintLabels)
	w.apply(3)
	w.pass(30 * time.Second)
	w.twins["c001"].off = true
	for len(w.twins["c000"].want) == 0 {
		w.now = w.now.Add(time.Second)
		w.do(Tick{})
		w.do(w.twins["c000"].report())
	}
	w.apply(2)
	w.apply(1)
	w.twins["c000"].full = false
	w.pass(2 * time.Minute)
	if w.running() != 1 {
		t.Errorf("%d instances run, want 1", w.running())
	}
	w.checkBooks()
}

func TestSharedRefusalsEndWithTheirService(t *testing.T) {
	w := refusing(t, 3, sched.ConstraintLabels)
	w.apply(3)
	w.pass(20 * time.Second)
	for _, tw := range w.twins {
		tw.full = false
	}
	w.pass(time.Hour)
	if w.running() != 3 {
		t.Errorf("%d instances run, want 3", w.running())
	}
	for _, id := range w.c.apps.Instances() {
		if why, _ := w.c.Why(id, w.now); len(why.Clusters) != 0 {
			t.Errorf("refusals of %s are left: %+v, want 0 of Clusters", id, why.Clusters)
		}
	}
	w.apply(1, code("new"))
	w.twins["c000"].full = true
	w.must(RemoveCluster{"c000"})
	delete(w.twins, "c000")
	w.settle()
	w.checkBooks()
}

// A non-exclusive instance stays with the cluster that handed it back. If that cluster accepts it
// later, its siblings are offered there before the pause ends.
func TestALateAcceptanceHelpsTheOthers(t *testing.T) {
	w := refusing(t, 2, sched.ConstraintLabels)
	w.apply(6)
	w.pass(15 * time.Minute)
	for id, tw := range w.twins {
		if n := w.on(id); n > 0 && n < 6 {
			tw.full = false
			break
		} else if n == 6 {
			t.Fatal("all instances are on one cluster")
		}
	}
	w.settle()
	w.settle()
	if n := w.running(); n != 6 {
		t.Errorf("%d instances run, want 6", n)
	}
	w.checkBooks()
}
