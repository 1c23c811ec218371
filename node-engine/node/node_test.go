package node

import (
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestWantedInstanceRunsAndUnwantedIsGone(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.is(api.Running)
	w.wants()
	w.isGone()
	if r := last[wire.NodeReport](w); len(r.Observed) != 1 || !r.Observed[0].Stopped {
		t.Errorf("the last report is %+v", r)
	}
}

func TestPausesGrowAndStartAnewAfterAStableRun(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	pause := func() time.Duration {
		w.exit(web, 1)
		w.is(api.Failed)
		from := w.now
		for w.c.Instances()[0].State != api.Running {
			if w.now.Sub(from) > 2*time.Minute {
				t.Fatal("it never started again")
			}
			w.pass(50 * time.Millisecond)
		}
		return w.now.Sub(from)
	}
	var pauses []time.Duration
	for range 9 {
		pauses = append(pauses, pause())
	}
	for i, p := range pauses {
		full := min(time.Second<<i, time.Minute)
		if p < full*3/4 || p > full+100*time.Millisecond {
			t.Errorf("pause %d lasted %s, want up to a quarter less than %s", i, p, full)
		}
	}
	if in := w.is(api.Running); in.Restarts != 9 {
		t.Errorf("%d restarts", in.Restarts)
	}
	w.pass(61 * time.Second)
	if p := pause(); p > 1100*time.Millisecond {
		t.Errorf("after a stable run the pause is %s", p)
	}
}

func TestManyFailuresAreReportedAsTooMany(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	for i := range 5 {
		w.exit(web, 3)
		in := w.is(api.Failed)
		if want := i == 4; (in.Reason == api.ReasonTooManyFails) != want {
			t.Errorf("failure %d: %s", i+1, in.Reason)
		}
		w.pass(time.Minute)
	}
}

func TestRuntimeThatIsDownIsNotTheWorkloadsFault(t *testing.T) {
	w := newWorld(t)
	w.slow = true
	w.wants(assignment(1))
	for range 8 {
		o := last[wire.CreateWorkload](w)
		w.step(Workload{wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadFailed, Reason: api.ReasonRuntimeDown}})
		if in := w.is(api.NodeScheduled); in.Reason != api.ReasonRuntimeDown || in.Restarts != 0 {
			t.Fatalf("%s after %d restarts", in.Reason, in.Restarts)
		}
		w.pass(time.Minute)
	}
}

func TestCompletedOneShotStaysCompleted(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, oneShot))
	w.exit(web, 0)
	w.is(api.Completed)
	created := count[wire.CreateWorkload](w)
	w.restart()
	w.is(api.Completed)
	delete(w.has, web) // another program removed it
	w.restart()
	w.pass(time.Minute)
	w.is(api.Completed)
	w.wants(assignment(1, oneShot))
	if got := count[wire.CreateWorkload](w); got != created {
		t.Error("it was created again")
	}
	w.wants(assignment(2, oneShot))
	w.is(api.Running)
}

func TestFailedOneShotIsTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, oneShot))
	w.exit(web, 1)
	w.is(api.Failed)
	w.pass(2 * time.Second)
	w.is(api.Running)
}

// TestCompletedPlacementThatIsWantedAgainStaysCompleted: a cluster that was restored from an older
// copy removes the instance from the desired set and adds it again under the same epoch.
func TestCompletedPlacementThatIsWantedAgainStaysCompleted(t *testing.T) {
	for _, epoch := range []api.Epoch{1, 2} {
		w := newWorld(t)
		w.wants(assignment(1, oneShot))
		w.exit(web, 0)
		w.slow = true
		w.wants()
		w.wants(assignment(epoch, oneShot))
		w.slow = false
		for _, e := range w.carryOut(last[wire.StopWorkload](w)) {
			w.step(Workload{e})
		}
		if epoch == 1 {
			w.is(api.Completed)
		} else {
			w.is(api.Running)
		}
	}
}

func TestRestartAdoptsWhatRuns(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	created := count[wire.CreateWorkload](w)
	w.restart()
	w.is(api.Running)
	if count[wire.CreateWorkload](w) != created || count[wire.StopWorkload](w) != 0 {
		t.Error("it was not simply taken over")
	}
	w.wants(assignment(1))
	w.is(api.Running)
}

func TestWhatEndedWhileTheEngineWasAwayRunsAgain(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	delete(w.has, web) // the machine restarted
	w.restart()
	if in := w.is(api.Running); in.Restarts != 1 {
		t.Errorf("%d restarts", in.Restarts)
	}
	e := w.has[web]
	e.Phase, e.ExitCode = wire.WorkloadExited, 1
	w.has[web] = e
	w.restart()
	w.is(api.Failed)
	w.pass(2 * time.Second)
	w.is(api.Running)
}

func TestStopThatWasLostIsOrderedAgain(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.slow = true
	w.wants()
	w.slow = false
	w.restart()
	w.isGone()
}

func TestUnclaimedWaitsForTheDesiredSet(t *testing.T) {
	tests := []struct {
		name string
		then func(w *world)
		want api.State // empty: it is gone
		made bool      // it had to be created again
	}{
		{"wanted", func(w *world) { w.wants(assignment(1)) }, api.Running, false},
		{"wanted under a newer epoch", func(w *world) { w.wants(assignment(2)) }, api.Running, true},
		{"not wanted", func(w *world) { w.wants() }, "", false},
		{"ended before it was wanted", func(w *world) { w.exit(web, 1); w.wants(assignment(1)) }, api.Failed, false},
		{"gone before it was wanted", func(w *world) {
			e := w.has[web]
			delete(w.has, web)
			e.Phase = wire.WorkloadGone
			w.step(Workload{e})
			w.wants(assignment(1))
		}, api.Running, true},
		{"gone with a runtime that came back", func(w *world) {
			clear(w.has)
			w.step(Info{Fresh: true})
			w.wants(assignment(1))
		}, api.Running, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.wants(assignment(1))
			w.loseStore()
			if count[wire.StopWorkload](w) > 0 {
				t.Fatal("it was ended before the cluster said so")
			}
			created := count[wire.CreateWorkload](w)
			tt.then(w)
			if tt.want == "" {
				w.isGone()
				return
			}
			w.is(tt.want)
			if made := count[wire.CreateWorkload](w) > created; made != tt.made {
				t.Errorf("created again: %v", made)
			}
		})
	}
}

func TestNewEpochWaitsForTheOldToBeGone(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.slow = true
	created := count[wire.CreateWorkload](w)
	w.wants(assignment(2))
	if count[wire.CreateWorkload](w) != created || last[wire.StopWorkload](w).Epoch != 1 {
		t.Fatal("the new placement did not wait")
	}
	w.slow = false
	for _, e := range w.carryOut(last[wire.StopWorkload](w)) {
		w.step(Workload{e})
	}
	if in := w.is(api.Running); in.Epoch != 2 {
		t.Errorf("epoch %s", in.Epoch)
	}
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadExited, ExitCode: 1}})
	w.is(api.Running) // events of the old placement are ignored
}

func TestOldAndUnconnectedSetsAreNotTaken(t *testing.T) {
	w := newWorld(t)
	w.gen = 5
	w.wants(assignment(1)) // generation 6
	for name, d := range map[string]wire.Desired{
		"older whole":                 {Gen: 4},
		"change from another":         {From: 4, Gen: 9, Drop: []api.InstanceID{web}},
		"change to an older":          {From: 6, Gen: 5, Drop: []api.InstanceID{web}},
		"the same again":              {Gen: 6, Put: []wire.Assignment{assignment(1)}, Digest: assignment(1).Digest()},
		"a timing that is not a time": {From: 6, Gen: 6, Timing: &wire.Timing{}},
	} {
		w.step(Desired{d})
		w.is(api.Running)
		if w.c.Gen() != 6 {
			t.Fatalf("%s: generation %d", name, w.c.Gen())
		}
	}
	w.step(Desired{wire.Desired{From: 6, Gen: 7, Drop: []api.InstanceID{web}}})
	w.isGone()
}

func TestExclusiveWaitsForTheLease(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, exclusive))
	w.is(api.NodeScheduled)
	if len(w.has) > 0 {
		t.Fatal("it was created without a lease")
	}
	w.pass(3 * time.Second)
	w.lease()
	w.is(api.Running)
	if last[wire.GuardWorkload](w).Until.IsZero() {
		t.Error("nothing guards it")
	}
}

// The deadline of an earlier attempt must not kill the next one.
func TestGuardOfAnEarlierAttemptIsLifted(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, exclusive))
	w.pass(3 * time.Second)
	w.lease()
	w.is(api.Running)
	w.all = nil
	w.exit(web, 1)
	for range 3 {
		w.pass(time.Second)
		w.lease()
	}
	w.is(api.Running)
	lifted := false
	for _, m := range w.all {
		switch m := m.(type) {
		case wire.GuardWorkload:
			lifted = m.Until.IsZero()
		case wire.CreateWorkload:
			if !lifted {
				t.Errorf("%s attempt %d is created under the guard of the one before", m.Key, m.Attempt)
			}
		}
	}
	if last[wire.GuardWorkload](w).Until.IsZero() {
		t.Error("nothing guards it")
	}
}

func TestLeaseRules(t *testing.T) {
	tests := []struct {
		name   string
		change func(w *world, l *wire.Lease)
		runs   bool
	}{
		{"the answer to the newest sign of life", func(*world, *wire.Lease) {}, true},
		{"of another life", func(_ *world, l *wire.Lease) { l.Boot-- }, false},
		{"to no sign of life", func(_ *world, l *wire.Lease) { l.Seq += 1 }, false},
		{"to none", func(_ *world, l *wire.Lease) { l.Seq = 0 }, false},
		{"of a cluster that has moved on", func(_ *world, l *wire.Lease) { l.Gen++ }, false},
		{"that came when it was over", func(w *world, _ *wire.Lease) { w.now = w.now.Add(6 * time.Second) }, false},
		{"to an earlier sign of life", func(w *world, l *wire.Lease) { l.Seq-- }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			w.wants(assignment(1, exclusive))
			w.pass(2500 * time.Millisecond)
			w.pass(time.Second)
			l := w.newestLease()
			tt.change(w, &l)
			w.step(Lease{l})
			if runs := w.c.Instances()[0].State == api.Running; runs != tt.runs {
				t.Errorf("it runs: %v", runs)
			}
		})
	}
}

func TestCutOffNodeStopsWhatMustNotOutliveTheLease(t *testing.T) {
	for _, stops := range []bool{true, false} {
		w := newWorld(t)
		w.wants(assignment(1, func(m *api.Microservice) {
			if stops {
				m.OnDisconnect = api.StopWhenCutOff
			}
		}))
		w.pass(2500 * time.Millisecond)
		w.lease()
		w.is(api.Running)
		w.step(Link{Up: false})
		w.pass(4 * time.Second)
		w.is(api.Running)
		w.pass(2 * time.Second)
		if _, has := w.has[web]; has == stops {
			t.Fatalf("the runtime has it: %v", has)
		}
		if !stops {
			continue
		}
		if in := w.is(api.NodeScheduled); in.Reason != api.ReasonLeaseExpired {
			t.Errorf("the reason is %q", in.Reason)
		}
		w.step(Link{Up: true})
		w.step(Tick{})
		w.lease()
		w.is(api.Running)
	}
}

func TestRestartedNodeRunsAnExclusiveOnForALeaseAtMost(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, exclusive))
	w.pass(2500 * time.Millisecond)
	w.lease()
	old := w.newestLease()
	w.restart()
	w.is(api.Running)
	w.step(Lease{old})
	w.pass(6 * time.Second)
	if len(w.has) > 0 {
		t.Error("it still runs")
	}
}

func TestNodeTellsEverythingWhenAskedOrWhenTheLinkReturns(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1))
	w.all = nil
	w.step(Tick{})
	if count[wire.NodeReport](w) > 0 {
		t.Error("it reports though nothing changed")
	}
	w.pass(2500 * time.Millisecond)
	l := w.newestLease()
	l.RequestWhole = true
	w.step(Lease{l})
	if r := last[wire.NodeReport](w); !r.Whole || len(r.Observed) != 1 || r.Info == nil || r.Info.ID != "n7" {
		t.Errorf("asked, it reports %+v", r)
	}
	w.step(Link{Up: false})
	w.all = nil
	w.exit(web, 1)
	w.pass(time.Minute)
	if count[wire.NodeReport](w)+count[wire.Alive](w) > 0 {
		t.Error("it speaks while the link is down")
	}
	w.step(Link{Up: true})
	if r := last[wire.NodeReport](w); !r.Whole {
		t.Errorf("back, it reports %+v", r)
	}
	if a := last[wire.Alive](w); a.Observed != last[wire.NodeReport](w).Observed[0].Digest().Toggle(last[wire.NodeReport](w).Info.Digest()) {
		t.Error("the sign of life is not about what was reported")
	}
}

// TestWhatCompletedLeavesTheNetwork: a completed instance keeps its address for its last packets and is
// then detached, even if orders or events are lost.
func TestWhatCompletedLeavesTheNetwork(t *testing.T) {
	at := netip.MustParseAddr("10.16.0.2")
	said := func(w *world) netip.Addr {
		t.Helper()
		w.is(api.Completed)
		return last[wire.NodeReport](w).Observed[0].Address
	}
	attached := func(w *world) {
		e := w.has[web]
		e.Address = at
		w.has[web] = e
		w.step(Workload{wire.WorkloadEvent{Key: e.Key, Attempt: e.Attempt, Address: at}})
	}
	leaves := func(w *world, before int) {
		t.Helper()
		if w.pass(time.Minute - time.Second); count[wire.DetachWorkload](w) != before || said(w) != at {
			t.Fatalf("it leaves at once, or says so: %s", said(w))
		}
		if w.pass(time.Second); count[wire.DetachWorkload](w) != before+1 || said(w).IsValid() {
			t.Fatalf("it does not leave, or says that it is at %s", said(w))
		}
		if o := last[wire.NodeReport](w).Observed[0]; o.ExitCode == nil || *o.ExitCode != 0 {
			t.Errorf("it has %v", o.ExitCode)
		}
	}
	w := newWorld(t)
	w.wants(assignment(1, oneShot))
	attached(w)
	w.exit(web, 0)
	leaves(w, 0)
	w.restart() // the order or its result was lost
	leaves(w, 1)
	e := w.has[web]
	e.Address = netip.Addr{}
	w.has[web] = e
	w.restart()
	if w.pass(time.Hour); count[wire.DetachWorkload](w) != 2 || said(w).IsValid() {
		t.Error("it goes on leaving")
	}

	w = newWorld(t) // the address is reported after the exit
	w.wants(assignment(1, oneShot))
	w.exit(web, 0)
	attached(w)
	leaves(w, 0)

	w = newWorld(t) // it exits while the runtime does not answer; the exit is reported once
	w.wants(assignment(1, oneShot))
	attached(w)
	e = w.has[web]
	e.Phase, e.ExitCode = wire.WorkloadExited, 0
	w.has[web] = e
	w.step(Info{Info: w.info, Fresh: true, Found: []wire.WorkloadEvent{e}})
	leaves(w, 0)

	w = newWorld(t) // the engine restarts, and the runtime has lost the workload
	w.wants(assignment(1, oneShot))
	attached(w)
	w.exit(web, 0)
	delete(w.has, web)
	w.restart()
	leaves(w, 0)

	w = newWorld(t) // an instance that will be restarted keeps its address
	w.wants(assignment(1))
	attached(w)
	w.exit(web, 0)
	if w.pass(time.Hour); count[wire.DetachWorkload](w) > 0 {
		t.Error("what is restarted leaves the network")
	}
}

// TestABootNumberBelowTheClustersIsRaised: the cluster knows a higher number of an earlier process.
func TestABootNumberBelowTheClustersIsRaised(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, exclusive))
	w.lease()
	before := w.c.boot
	w.step(Lease{wire.Lease{Boot: wire.MaxBoot}}) // after it there would be no higher one
	if w.c.boot != before {
		t.Errorf("its boot number is %d, want %d as before", w.c.boot, before)
	}
	higher := before + 5000
	w.step(Lease{wire.Lease{Boot: higher}})
	w.pass(time.Second)
	if a, r := last[wire.Alive](w), last[wire.NodeReport](w); a.Boot <= higher || r.Boot != a.Boot || !r.Whole {
		t.Errorf("it sends %+v and %+v, want both with a boot number above %d, and a whole report", a, r, higher)
	}
	w.is(api.Running)
	w.restart()
	if w.c.boot <= higher+1 {
		t.Errorf("after a restart its boot number is %d, want more than %d", w.c.boot, higher+1)
	}
}
