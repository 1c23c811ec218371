package sched_test

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func TestRelaxViolatesBoundsAsLittleAsPossible(t *testing.T) {
	const ms, s = time.Millisecond, time.Second
	own := sched.Link{Service: "b", Relaxable: true, RTT: 10 * ms, Convergence: 7 * s}
	kept := sched.Link{Area: "munich", RTT: 30 * ms, Convergence: s}
	others := sched.Link{Service: "a", RTT: 5 * ms, Convergence: 9 * s}
	req := sched.Request{Bounds: []sched.Bound{own.Bound(), kept.Bound(), others.Inbound("acme/shop.prod.c.prod", others.Bound())}}
	if got := req.SearchTime(); got != 7*s {
		t.Errorf("it is searched for %s", got)
	}
	// try accepts an own bound of at least this, or none
	for _, tt := range []struct {
		from time.Duration
		own  bool
		want []time.Duration // of the remaining bounds
		ok   bool
	}{
		{10 * ms, true, []time.Duration{10 * ms, 30 * ms}, true},
		{11 * ms, true, []time.Duration{20 * ms, 30 * ms}, true},
		{100 * ms, true, []time.Duration{160 * ms, 30 * ms}, true},
		{2560 * ms, true, []time.Duration{2560 * ms, 30 * ms}, true},
		{2561 * ms, true, []time.Duration{30 * ms}, true},
		{11 * ms, false, []time.Duration{10 * ms, 30 * ms}, false},
	} {
		got, ok := req.Relax(tt.own, func(r *sched.Request) bool {
			return len(r.Bounds) == 1 || len(r.Bounds) == 2 && r.Bounds[0].RTT >= tt.from
		})
		if ok != tt.ok || len(got.Bounds) != len(tt.want) {
			t.Errorf("from %s: %v, %+v", tt.from, ok, got.Bounds)
			continue
		}
		for i, d := range tt.want {
			if got.Bounds[i].RTT != d {
				t.Errorf("from %s: bound %d is %s, want %s", tt.from, i, got.Bounds[i].RTT, d)
			}
		}
	}
	if len(req.Bounds) != 3 || req.Bounds[0].RTT != 10*ms {
		t.Errorf("the request was changed: %+v", req.Bounds)
	}
	if got, ok := req.Relax(true, func(*sched.Request) bool { return false }); ok || len(got.Bounds) != 1 {
		t.Errorf("where nothing fits: %v, %+v", ok, got.Bounds)
	}
}

// Only rejections that the search causes mention it.
func TestOnlyRelaxableBoundsAreReportedAsSearched(t *testing.T) {
	far := func(id string) api.Rejection {
		return api.Rejection{Candidate: id, Constraint: sched.ConstraintLatency, Have: "60 ms"}
	}
	res := sched.Result{Rejected: []api.Rejection{far("a"), far("b"), {Candidate: "c", Constraint: sched.ConstraintMemory, Have: "1 MiB"}}}
	loosest := sched.Result{Ranked: []sched.Choice{{ID: "a"}}, Rejected: []api.Rejection{far("b"), res.Rejected[2]}}
	got := sched.AnnotateSearch(res, loosest, time.Date(2026, 1, 1, 12, 0, 5, 0, time.UTC)).Rejected
	if got[0].Have != "60 ms; searching until 12:00:05 UTC" || got[1].Have != "60 ms" || got[2].Have != "1 MiB" || res.Rejected[0].Have != "60 ms" {
		t.Errorf("the rejections during a search are %+v", got)
	}
}
