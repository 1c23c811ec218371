package cluster

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// When an instance's earlier placement has ended, its capacity is free for the new placement in
// the same step. An exclusive instance must not be handed back, because then the root would have
// to offer it again.
func TestResourcesOfTheEarlierPlacementAreFreeForTheNext(t *testing.T) {
	w := newWorld(t, 0)
	w.join("n0", api.Resources{MilliCPU: 2000, MemoryMB: 200})
	had, gets := assignment(0, 1, spec(0.5, 10)), assignment(0, 3, spec(2, 10))
	other := assignment(1, 2, spec(1.5, 10))
	had.Spec.Exclusive, gets.Spec.Exclusive, gets.SpecRev = true, true, 2
	w.wants(had, other)
	w.beat()
	w.expect(0, api.Running, "n0")
	// The new placement needs the capacity of both; the other instance is removed in the same
	// step.
	delete(w.want, other.Instance)
	w.wants(gets)
	w.nodes["n0"].settle()
	w.speak("n0")
	if in := w.record(gets.Instance); in.Node != "n0" || in.AwaitsOffer {
		t.Errorf("with all of n0 free it is on %q, handed back for good: %v (%s)", in.Node, in.AwaitsOffer, in.Detail)
	}
}

// Freed capacity is given away in order: the instance that released it comes after instances
// that are more urgent or have waited longer.
func TestFreedCapacityIsGivenInTheOrderOfTheQueue(t *testing.T) {
	w := newWorld(t, 0)
	w.join("n0", api.Resources{MilliCPU: 2000, MemoryMB: 200})
	had, gets := assignment(0, 1, spec(0.25, 10)), assignment(0, 4, spec(1.25, 10))
	large, small := assignment(1, 2, spec(1.5, 10)), assignment(1, 5, spec(0.5, 10))
	urgent := assignment(2, 3, spec(1.25, 10))
	gets.SpecRev, small.SpecRev, urgent.Spec.Priority = 2, 2, "high"
	w.wants(had, large)
	w.beat()
	w.expect(0, api.Running, "n0")
	w.wants(urgent)
	if in := w.record(urgent.Instance); in.Node != "" {
		t.Fatalf("it is on %s, where there was no capacity", in.Node)
	}
	w.wants(gets, small) // had ends, because gets needs more than is free; what large leaves is enough for urgent
	w.nodes["n0"].settle()
	w.speak("n0")
	if a, b := w.record(urgent.Instance), w.record(gets.Instance); a.Node != "n0" || b.Node != "" {
		t.Errorf("the more urgent one is on %q, the other one on %q", a.Node, b.Node)
	}
}
