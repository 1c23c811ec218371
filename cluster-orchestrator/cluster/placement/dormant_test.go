package placement

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestADormantInstanceHoldsNothingAndWakes(t *testing.T) {
	all := api.Resources{MilliCPU: 1000, MemoryMB: 1000, StorageMB: 1000}
	r := newRig(t, 1, false, func(int) api.Resources { return all })
	spec := api.Microservice{Memory: 600}
	id, other := web.Instance(0), web.Instance(1)
	at := func(id api.InstanceID) Record {
		t.Helper()
		in, ok := r.Record(id)
		if !ok {
			t.Fatalf("%s does not exist", id)
		}
		return in
	}
	r.SetDesired(assignment(0, spec))
	if in := at(id); in.Node != "n0" {
		t.Fatalf("%s is %s on %q, want it on n0", id, in.State, in.Node)
	}
	first := at(id).Epoch
	r.report("n0", true, api.Observed{Instance: id, Epoch: first, State: api.Running, Restarts: 3, Failures: 2})
	r.Sleep(id, api.ReasonIdle, "nobody calls it")
	if in := at(id); !r.Dormant(id) || in.Node != "" || in.Reason != api.ReasonIdle || in.Restarts+in.Failures != 0 {
		t.Fatalf("asleep, it is %s (%s) on %q with %d restarts and %d failures", in.State, in.Reason, in.Node, in.Restarts, in.Failures)
	}
	r.report("n0", true, api.Observed{Instance: id, Epoch: first, State: api.Running}) // it is still being stopped
	if in := at(id); in.State != api.Dormant || len(in.OldPlacements) != 1 {
		t.Fatalf("a late report makes it %s with %d earlier placements", in.State, len(in.OldPlacements))
	}
	r.report("n0", true)
	if used := r.Sums().Used; used != (api.Resources{}) || len(at(id).OldPlacements) > 0 {
		t.Fatalf("asleep and stopped, it takes %+v", used)
	}

	// A restart keeps it dormant, and capacity that becomes free does not wake it.
	saved := r.fx.End().Save
	r2 := newRig(t, 1, false, func(int) api.Resources { return all })
	var last []byte // an instance may be saved several times in a step
	for _, d := range saved {
		if d.Kind == KindInstance && d.Key == string(id) {
			last = d.Data
		}
	}
	if err := r2.Restore(last); err != nil {
		t.Fatal(err)
	}
	r = r2
	r.Start()
	r.Settle()
	r.report("n0", true)
	if !r.Dormant(id) {
		t.Fatalf("after a restart it is %s on %q", at(id).State, at(id).Node)
	}

	// It waits for capacity like any other instance when it wakes, and is handed back.
	r.SetDesired(assignment(1, spec))
	if !r.Wake(id, "called") || r.Wake(id, "called") {
		t.Error("it wakes twice or not at all")
	}
	if in := at(id); in.State != api.ClusterScheduled || !in.HandedBack || at(other).Node != "n0" {
		t.Fatalf("it is %s (handed back: %v) while the other takes %q (%s)", in.State, in.HandedBack, at(other).Node, at(other).Detail)
	}
	r.Sleep(id, api.ReasonIdle, "")
	if in := at(id); in.State != api.Dormant || in.HandedBack {
		t.Fatalf("asleep again, it is %s (handed back: %v)", in.State, in.HandedBack)
	}
	r.RemoveDesired(other)
	r.report("n0", true)
	if !r.Dormant(id) {
		t.Fatal("free capacity woke it")
	}
	r.Wake(id, "called")
	if in := at(id); in.Node != "n0" || in.Epoch <= first {
		t.Fatalf("awake, it is %s on %q under epoch %s, want it on n0 above %s", in.State, in.Node, in.Epoch, first)
	}
	r.Sleep(id, api.ReasonIdle, "")
	r.RemoveDesired(id)
	r.report("n0", true)
	if _, ok := r.Record(id); ok {
		t.Error("it is still there after its removal")
	}
}
