package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// TestUnknownBandwidthTakesNoReservation: a node of unknown bandwidth refuses instances that
// reserve bandwidth, and says how to state it. It counts as unknown in the aggregate, and
// violates no SLA of its instances.
func TestUnknownBandwidthTakesNoReservation(t *testing.T) {
	w := line(t, 0, nil)
	w.join("n0", api.Resources{})
	describe := func(mbit int64, unknown bool) {
		info := nodeInfo("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096, InMbit: mbit, OutMbit: mbit})
		info.BandwidthUnknown = unknown
		r := w.nodes["n0"].whole()
		r.Info = &info
		w.step(r)
	}
	describe(500, true) // contradictory: unknown takes precedence
	w.join("n1", api.Resources{MilliCPU: 4000, MemoryMB: 4096, InMbit: 100, OutMbit: 100})

	a := w.c.Aggregate()
	if a.Nodes != 2 || a.BandwidthUnknown != 1 || a.Capacity.InMbit != 100 || a.Mean.InMbit != 100 || a.StdDev.InMbit != 0 || a.Mean.MilliCPU != 4000 {
		t.Errorf("aggregate %+v, want one node of unknown bandwidth and means over the other", a)
	}
	if len(a.Slots) != 1 || a.Slots[0].BandwidthUnknown != 1 {
		t.Errorf("slots %+v, want one node of unknown bandwidth", a.Slots)
	}

	w.step(Cordon{"n1", true})
	reserves := of(web, 0, 1)
	reserves.Spec.BandwidthIn = 50
	w.wants(reserves)
	ex, _ := w.c.Why(web.Instance(0))
	said := ""
	for _, r := range ex.Candidates {
		if r.Candidate == "n0" && r.Constraint == sched.ConstraintBandwidthIn {
			said = r.Have
		}
	}
	if !strings.Contains(said, "unknown") || !strings.Contains(said, "key bandwidth") {
		t.Errorf("why says %q of n0: %+v", said, ex)
	}

	describe(100, false) // the operator states the bandwidth
	w.beat()
	if at := w.at(0); at.Node != "n0" {
		t.Fatalf("with 100 Mbit/s n0 does not take it: %+v", at)
	}
	if n := w.c.Aggregate().BandwidthUnknown; n != 0 {
		t.Errorf("%d nodes are of unknown bandwidth, want none", n)
	}
	describe(0, true) // the interface no longer reports its speed
	w.pass(2 * time.Minute)
	if in := w.record(web.Instance(0)); in.Violated != "" || in.Node != "n0" {
		t.Errorf("unknown bandwidth is taken for too little: %q on %s", in.Violated, in.Node)
	}
	describe(0, false) // 0 is a known value
	w.pass(10 * time.Second)
	if in := w.record(web.Instance(0)); in.Violated == "" {
		t.Error("0 Mbit/s of 50 breaks nothing")
	}
}
