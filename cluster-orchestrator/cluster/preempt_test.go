package cluster

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func classed(n int, rev api.Revision, class string, cpu float64) api.Assignment {
	m := spec(cpu, 100)
	m.Priority = class
	a := assignment(n, rev, m)
	a.SpecRev = rev
	return a
}

func TestTheUrgentEvictTheFewestAndLeastUrgent(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 2), classed(1, 1, "low", 2), classed(2, 1, "normal", 4))
	w.beat()
	w.wants(classed(3, 2, "high", 3))
	in := w.c.instances[web.Instance(3)]
	if in.Node != "" || in.Reserved == "" || w.at(2).State != api.ClusterScheduled && w.at(2).Node == "" && w.at(0).Node == "" {
		t.Fatalf("it is on %q with room on %q", in.Node, in.Reserved)
	}
	kept := in.Reserved
	w.checkBooks()
	w.wants(classed(4, 3, "low", 1)) // who comes meanwhile gets nothing of it
	w.restart()
	if got := w.c.instances[web.Instance(3)]; got.Reserved != kept {
		t.Fatalf("after a restart room is kept on %q", got.Reserved)
	}
	w.checkBooks()
	w.pass(15 * time.Second)
	w.checkBooks()
	if got := w.at(3); got.State != api.Running || got.Node != kept {
		t.Errorf("it is %s on %q", got.State, got.Node)
	}
}

func TestTheRootIsToldWhoWouldMakeWay(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 3), classed(1, 1, "normal", 4))
	w.beat()
	for range 2 {
		got := w.c.Aggregate().Yields
		if len(got) != 3 || got[0].Urgency != 1 || got[0].Free.MilliCPU != 4000 || got[0].Largest.MilliCPU != 4000 ||
			got[1].Free.MilliCPU != 8000 || got[2].Free.MilliCPU != 8000 || got[2].Largest.MilliCPU != 4000 {
			t.Fatalf("%+v", got)
		}
		w.restart()
		w.pass(10 * time.Second)
	}
	w.drops(web.Instance(0), web.Instance(1))
	w.pass(5 * time.Second)
	if got := w.c.Aggregate().Yields; got != nil {
		t.Errorf("of an empty cluster: %+v", got)
	}
}

// TestKeptRoomIsTakenOnce has the room that is kept for an exclusive instance
// empty when the cluster, after a restart, hears its last node: taking it, it must
// not have others make way elsewhere as well (seed 1575).
func TestKeptRoomIsTakenOnce(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "low", 4), classed(1, 1, "low", 4))
	w.beat()
	a := classed(2, 2, "high", 3)
	a.Spec.Exclusive = true
	w.wants(a)
	kept := w.c.instances[web.Instance(2)].Reserved
	if kept == "" {
		t.Fatal("no room is kept")
	}
	for _, n := range w.nodes {
		n.settle()
	}
	w.restart()
	for id := range w.nodes {
		if id != kept {
			w.speak(id)
		}
	}
	w.step(w.nodes[kept].alive()) // heard before it reports, or the room is not free yet
	w.step(w.nodes[kept].whole())
	w.checkBooks()
	if in := w.c.instances[web.Instance(2)]; in.Node != kept || in.Reserved != "" {
		t.Fatalf("it is on %q with room on %q", in.Node, in.Reserved)
	}
	for range 3 {
		w.pass(3 * time.Second)
		w.checkBooks()
		w.expect(2, api.Running, kept)
	}
}

func TestWhoLosesItsNodeHasOthersMakeWay(t *testing.T) {
	for _, alone := range []bool{false, true} {
		w := line(t, 2, func(c *Config) { c.Preempt = true })
		a := classed(0, 1, "urgent", 4)
		a.Spec.Exclusive = alone
		w.wants(a, classed(1, 1, "low", 2), classed(2, 1, "low", 2))
		w.beat()
		lost := w.at(0).Node
		w.nodes[lost].off = true
		for range 5 {
			w.pass(3 * time.Second)
			w.checkBooks()
		}
		if in := w.at(0); in.State != api.Running || in.Node == lost {
			t.Fatalf("exclusive %v: it is %s on %q: %s", alone, in.State, in.Node, in.Detail)
		}
		w.nodes[lost].off = false
		w.pass(10 * time.Second)
		w.checkBooks()
		if a, b := w.at(1), w.at(2); a.Node != lost || b.Node != lost {
			t.Errorf("exclusive %v: who made way is on %q and %q", alone, a.Node, b.Node)
		}
	}
}

func TestNobodyMakesWayForEqualsOrForNothing(t *testing.T) {
	w := line(t, 1, func(c *Config) { c.Preempt = true })
	w.wants(classed(0, 1, "normal", 4))
	w.beat()
	w.wants(classed(1, 2, "normal", 2), classed(2, 2, "urgent", 8))
	w.pass(10 * time.Second)
	w.expect(0, api.Running, "n0")
	w = newWorld(t, 1) // and without the operator's leave nobody does
	w.wants(classed(0, 1, "low", 4))
	w.beat()
	w.wants(classed(1, 2, "urgent", 2))
	w.expect(0, api.Running, "n0")
}

// TestPreemptionNeverHitsEquals gives instances of all classes at random.
func TestPreemptionNeverHitsEquals(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 21))
		w := line(t, 3, func(c *Config) { c.Preempt = true })
		urgency := map[api.InstanceID]int{}
		for i := range 30 {
			a := classed(i, api.Revision(i+1), api.Priorities[rng.IntN(4)], float64(1+rng.IntN(3)))
			urgency[a.Instance] = a.Spec.Urgency()
			before := map[api.InstanceID]api.NodeID{}
			for id := range urgency {
				before[id] = w.nodeOf(id)
			}
			w.wants(a)
			w.checkBooks()
			for id, n := range before {
				if n != "" && w.nodeOf(id) != n && urgency[id] >= urgency[a.Instance] {
					t.Fatalf("seed %d: %s of %d made way for %s of %d", seed, id, urgency[id], a.Instance, urgency[a.Instance])
				}
			}
			if rng.IntN(2) == 0 {
				w.beat()
			}
		}
		w.pass(30 * time.Second)
		w.checkBooks()
		for id, n := range w.c.nodes {
			if n.used.MilliCPU > 4000 || len(n.reserved) > 0 {
				t.Fatalf("seed %d: %s has %v, and keeps room for %d", seed, id, n.used, len(n.reserved))
			}
		}
		// Nobody waits while somebody less urgent and at least as large runs.
		for _, id := range w.c.waiting.List() {
			for other := range urgency {
				if w.nodeOf(other) != "" && urgency[other] < urgency[id] && w.c.instances[other].demand.claim.Room.MilliCPU >= w.c.instances[id].demand.claim.Room.MilliCPU {
					t.Fatalf("seed %d: %s waits although %s runs", seed, id, other)
				}
			}
		}
	}
}
