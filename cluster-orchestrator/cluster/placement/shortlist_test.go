package placement

import (
	"fmt"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// TestTheShortlistChoosesNoWorse compares each choice of a burst with the choice from the whole
// table, while nodes are cordoned and become full.
func TestTheShortlistChoosesNoWorse(t *testing.T) {
	r := newRig(t, shortFrom+50, false, func(i int) api.Resources {
		return api.Resources{MilliCPU: int64(500 * (i%6 + 1)), MemoryMB: 1024}
	})
	short := 0
	for i := range 1200 {
		if i%97 == 0 {
			r.cordon(api.NodeID(fmt.Sprintf("n%d", i%shortFrom)), i%2 == 0)
		}
		a := assignment(i, api.Microservice{VCPUs: 0.4, Memory: 64})
		in := &instance{Record: Record{Epoch: a.Epoch, Desired: a}, demand: demandOf(a.Instance, &a.Spec)}
		req := r.request(in)
		best, ok := r.best(&req, in.seed())
		r.SetDesired(a)
		placed := r.instances[a.Instance]
		if (placed.Node != "") != ok {
			t.Fatalf("instance %d is on %q, and the table has %v", i, placed.Node, best)
		}
		if r.short.cands != nil {
			short++
		}
		if !ok {
			continue
		}
		cand := r.nodes[placed.Node].without(a.Instance)
		cand.Load--
		if got, _ := sched.PlaceBest(&req, []sched.Candidate{cand}, r.cfg.Plugin, 0); got.Score < best.Score-1e-9 {
			t.Fatalf("instance %d is on %s with score %g, %s has %g", i, placed.Node, got.Score, best.ID, best.Score)
		}
	}
	if short < 1000 {
		t.Errorf("only %d of 1200 choices used the list, want 1000", short)
	}
}

// TestAReservationEndsIfAnotherConstraintFails: the position of the area of the
// instance's link becomes unknown in the step in which the preempted instance has stopped.
func TestAReservationEndsIfAnotherConstraintFails(t *testing.T) {
	r := newRig(t, 1, true, func(int) api.Resources { return api.Resources{MilliCPU: 4000, MemoryMB: 4096} })
	here := vivaldi.New()
	here.Vec[0], here.Error = 0.005, 0.1
	r.MoveNode("n0", &here)
	low := assignment(0, api.Microservice{VCPUs: 4, Priority: "low"})
	r.SetDesired(low)
	r.report("n0", true, api.Observed{Instance: low.Instance, Epoch: r.instances[low.Instance].Epoch, State: api.Running})
	urgent := assignment(1, api.Microservice{VCPUs: 2, Priority: "urgent", Constraints: []api.Constraint{{Type: api.ConstrainLatency, Area: "oslo", Threshold: 106}}})
	urgent.Targets = []api.Target{{Area: "oslo", Positions: []api.Position{{Coord: &here}}}}
	r.SetDesired(urgent)
	in := r.instances[urgent.Instance]
	if in.Reserved != "n0" {
		t.Fatalf("capacity is reserved on %q, want n0: %s", in.Reserved, in.Detail)
	}
	in.Desired.Targets = nil
	r.report("n0", true)
	if in.Reserved != "" || !in.HandedBack {
		t.Errorf("capacity is reserved on %q, handed back: %v, want it given up", in.Reserved, in.HandedBack)
	}
	if v, _ := r.Node("n0"); v.Reserved != (api.Resources{}) {
		t.Errorf("%s is reserved on n0, want nothing", v.Reserved)
	}
}
