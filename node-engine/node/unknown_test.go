package node

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

const runtimeDown = "ask containerd for its version: connection refused"

// restartBlind restarts the engine while the runtime does not answer.
func (w *world) restartBlind() {
	w.t.Helper()
	down := w.info
	w.info.RuntimeError = runtimeDown
	has := w.has
	w.has = nil
	w.restart()
	w.has, w.info = has, down
}

// fresh makes the runtime answer again.
func (w *world) fresh() {
	var found []wire.WorkloadEvent
	for _, e := range w.has {
		found = append(found, e)
	}
	w.step(Info{Info: w.info, Found: found, Fresh: true})
}

func TestWorkloadsAreUnknownWhileTheRuntimeIsSilent(t *testing.T) {
	for _, kind := range []struct {
		name   string
		change []func(*api.Microservice)
	}{{"ordinary", nil}, {"exclusive", []func(*api.Microservice){exclusive}}} {
		t.Run(kind.name, func(t *testing.T) {
			w := newWorld(t)
			w.lease()
			w.wants(assignment(1, kind.change...))
			w.is(api.Running)
			w.restartBlind()
			w.all = nil
			for range 40 { // more than a minute, with a connection to the cluster
				w.pass(2 * time.Second)
				w.lease()
			}
			w.step(Info{Info: api.NodeInfo{RuntimeError: runtimeDown}})
			if in := w.is(api.Running); in.Reason != api.ReasonRuntimeDown || in.Detail == "" {
				t.Errorf("it is running because %q: %q, want it said that nobody knows", in.Reason, in.Detail)
			}
			if n := count[wire.CreateWorkload](w) + count[wire.StartWorkload](w) + count[wire.StopWorkload](w); n > 0 {
				t.Errorf("%d orders were given about a workload that nobody can see: %v", n, w.all)
			}
			for _, m := range w.all {
				if r, ok := m.(wire.NodeReport); ok {
					for _, o := range r.Observed {
						if o.State == api.Failed || o.Stopped {
							t.Errorf("the cluster was told %+v", o)
						}
					}
				}
			}
			if kind.change != nil && !last[wire.GuardWorkload](w).Until.After(w.now) {
				t.Errorf("the guard kills it at %v, now is %v, and the lease was renewed", last[wire.GuardWorkload](w).Until, w.now)
			}
			w.fresh()
			if in := w.is(api.Running); in.Reason != api.ReasonNone || in.Restarts != 0 {
				t.Errorf("back in sight it is %+v, want it running as before", in)
			}
		})
	}
}

func TestRuntimeThatFallsSilentMakesWorkloadsUnknown(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.step(Info{Info: api.NodeInfo{RuntimeError: runtimeDown}})
	if in := w.is(api.Running); in.Reason != api.ReasonRuntimeDown {
		t.Errorf("its reason is %q", in.Reason)
	}
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Ready: true}})
	if in := w.is(api.Running); in.Reason != api.ReasonRuntimeDown {
		t.Errorf("after word of the network its reason is %q", in.Reason)
	}
	w.fresh()
	if in := w.is(api.Running); in.Reason != api.ReasonNone {
		t.Errorf("its reason is still %q", in.Reason)
	}
}

func TestExclusiveThatNobodySeesEndsWithTheLease(t *testing.T) {
	w := newWorld(t)
	w.lease()
	w.wants(assignment(1, exclusive))
	w.restartBlind()
	w.slow, w.all = true, nil
	w.pass(6 * time.Second) // no lease comes
	if s := last[wire.StopWorkload](w); s.Instance != web || s.Grace != 0 {
		t.Fatalf("the lease ended and the runtime was ordered %+v, want a stop at once", w.all)
	}
}

func TestOrderOfUnknownOutcomeIsNoFailure(t *testing.T) {
	w := newWorld(t)
	w.slow = true
	w.wants(assignment(1))
	down := wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadFailed, Reason: api.ReasonRuntimeDown, Detail: "deadline exceeded"}
	w.step(Workload{down})
	if in := w.is(api.NodeScheduled); in.Reason != api.ReasonRuntimeDown {
		t.Errorf("its reason is %q", in.Reason)
	}
	before := count[wire.CreateWorkload](w)
	var pauses []time.Duration
	for range 8 {
		at := w.now
		w.pass(0)
		for count[wire.CreateWorkload](w) == before {
			w.now = w.last.Wake
			w.step(Tick{})
		}
		before = count[wire.CreateWorkload](w)
		pauses = append(pauses, w.now.Sub(at))
		w.step(Workload{down})
	}
	for i := 1; i < 6; i++ {
		if pauses[i] < pauses[i-1]*3/2 {
			t.Fatalf("the pauses %v do not grow", pauses)
		}
	}
	if o := last[wire.CreateWorkload](w); o.Attempt != 0 {
		t.Errorf("it is created as attempt %d, want 0: the first may exist", o.Attempt)
	}
	if pauses[7] > time.Minute {
		t.Errorf("a pause lasts %v, want a minute at most", pauses[7])
	}
}

func TestStopsThatFailAreNotAllOrderedAgainAtOnce(t *testing.T) {
	w := newWorld(t)
	var all []wire.Assignment
	for i := range 100 {
		a := assignment(1)
		a.Instance = a.Instance.Service().Instance(i)
		all = append(all, a)
	}
	w.wants(all...)
	w.slow = true
	w.wants()
	if n := count[wire.StopWorkload](w); n != 100 {
		t.Fatalf("%d stops were ordered, want 100", n)
	}
	for range 5 {
		w.all = nil
		for _, a := range all {
			w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: a.Instance, Epoch: a.Epoch}, Phase: wire.WorkloadFailed, Reason: api.ReasonRuntimeDown, Detail: "deadline exceeded"}})
		}
		w.fresh() // the driver lists the workloads after each such failure
		w.fresh()
		if n := count[wire.StopWorkload](w); n != 0 {
			t.Fatalf("a look at the runtime ordered %d stops again, want none before their pauses are over", n)
		}
		most, stops := 0, 0
		for stops < 100 {
			w.now = w.last.Wake
			w.step(Tick{})
			n := count[wire.StopWorkload](w)
			most, stops = max(most, n-stops), n
		}
		if most > 10 {
			t.Errorf("%d stops were ordered again in one moment", most)
		}
	}
}

func TestExitAfterAFailedStopIsSaid(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.slow = true
	w.wants()
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadFailed, Reason: api.ReasonRuntimeDown}})
	w.is(api.Running)
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadExited, ExitCode: 143}})
	if in := w.is(api.Failed); in.Reason != api.ReasonDeleted || in.ExitCode == nil {
		t.Errorf("it ended because %q with code %v, want that it was stopped", in.Reason, in.ExitCode)
	}
}

func TestExitWhileItIsStoppedIsSeen(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.slow = true
	w.wants()
	w.is(api.Running)
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadExited, ExitCode: 143}})
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadFailed, Reason: api.ReasonRuntimeDown}})
	if in := w.is(api.Failed); in.Reason != api.ReasonDeleted {
		t.Errorf("it ended because %q: %q", in.Reason, in.Detail)
	}
	e := w.has[web]
	e.Phase, e.ExitCode = wire.WorkloadExited, 143
	w.has[web] = e
	w.fresh()
	w.is(api.Failed)
	w.wants(assignment(1)) // wanted again under the same epoch before it is removed
	w.slow = false
	w.pass(5 * time.Minute)
	w.is(api.Running)
}

// TestACreationUnderWayIsNotTakenForMissing: the runtime lists its workloads while it still creates an
// instance whose lease is about to end, and the instance is then removed from the desired set (seed
// 7005).
func TestACreationUnderWayIsNotTakenForMissing(t *testing.T) {
	w := newWorld(t)
	w.lease()
	w.slow = true
	w.wants(assignment(1, exclusive))
	if n := count[wire.CreateWorkload](w); n != 1 {
		t.Fatalf("%d creations are ordered, want 1", n)
	}
	w.now = w.now.Add(3 * time.Second)
	w.fresh()
	w.wants()
	if r := last[wire.NodeReport](w); len(r.Observed) > 0 && r.Observed[0].Stopped {
		t.Fatalf("the cluster was told %+v, and the creation is under way", r.Observed[0])
	}
	if s := last[wire.StopWorkload](w); s.Instance != web {
		t.Fatal("its stop is not ordered")
	}
	w.slow = false
	for _, m := range w.all {
		for _, e := range w.carryOut(m) { // in sequence
			w.step(Workload{e})
		}
	}
	w.isGone()
}
