package cluster

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestACrashReservesNoCapacityTwice: an urgent instance takes the capacity of another one whose
// earlier placement ended and which is then placed elsewhere. The cluster crashes after each
// save of that step (seed 695).
func TestACrashReservesNoCapacityTwice(t *testing.T) {
	for saves := 0; ; saves++ {
		w := newWorld(t, 0)
		w.join("n0", api.Resources{MilliCPU: 2000, MemoryMB: 200})
		had := assignment(0, 1, exclusive(2, 10))
		urgent := assignment(1, 2, spec(2, 10))
		urgent.Spec.Priority = "high"
		w.wants(had)
		w.beat()
		w.expect(0, api.Running, "n0")
		w.wants(urgent)
		w.join("n1", api.Resources{MilliCPU: 500, MemoryMB: 200})
		gets := assignment(0, 3, exclusive(0.5, 10))
		gets.SpecRev = 2
		gets.Spec.Constraints = []api.Constraint{{Type: "direct", Node: "n1"}}
		w.wants(gets)
		w.nodes["n0"].settle()
		eff := w.c.Step(w.now, w.nodes["n0"].whole())
		w.save(eff.Save[:min(saves, len(eff.Save))])
		if in := w.record(urgent.Instance); in.Node != "n0" {
			t.Fatalf("the urgent one is on %q: %s", in.Node, in.Detail)
		}
		if in := w.record(gets.Instance); in.Node != "n1" {
			t.Fatalf("the other is on %q: %s", in.Node, in.Detail)
		}
		w.restart()
		for _, n := range w.c.Nodes() {
			if !n.Allocated.Fits(n.Capacity) {
				t.Errorf("after %d of %d saves %s has %s, of which %s is allocated", saves, len(eff.Save), n.ID, n.Capacity, n.Allocated)
			}
		}
		if saves > len(eff.Save) {
			return
		}
	}
}
