package node

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node/health"
)

var (
	tcp80    = &api.Check{TCP: &api.TCPCheck{Port: 80}}
	onNet    = netip.MustParseAddr("10.16.0.9")
	isReady  = health.Verdict{Started: true, Ready: true, Text: "readiness: TCP :80 passed"}
	notReady = health.Verdict{Started: true, Text: "readiness: TCP :80: connection refused, 3 of 3 failed"}
	isFailed = health.Verdict{Started: true, Failed: true, Text: "liveness: TCP :80: connection refused, 3 of 3 failed"}
)

func gated(m *api.Microservice) { m.Health = &api.Health{Readiness: tcp80, Liveness: tcp80} }
func lively(m *api.Microservice) {
	m.Health = &api.Health{Liveness: tcp80}
}

// judge sends a verdict about the newest checks.
func (w *world) judge(v health.Verdict) {
	w.t.Helper()
	c := last[Check](w)
	w.step(Health{c.Key, c.Attempt, v})
}

// listens reports that the workload is on the network, and whether the network sends flows to it.
func (w *world) listens(ready bool) {
	e := w.has[web]
	e.Phase, e.Address, e.Ready = "", onNet, ready
	w.step(Workload{e})
}

func (w *world) seen() api.Observed { return w.c.works[web].observed }

func TestHealthChecksDecideWhetherItIsReady(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, gated))
	if in := w.is(api.Running); in.Reason != api.ReasonNotReady || in.Detail == "" {
		t.Errorf("before the checks it is %+v, want not ready with an explanation", in)
	}
	w.listens(true) // a netmanager that was not told yet
	if o := w.seen(); o.Ready || last[wire.ReadyWorkload](w) != (wire.ReadyWorkload{Key: wire.Key{Instance: web, Epoch: 1}}) {
		t.Errorf("it listens: %+v, want not ready, and an order to the network", o)
	}
	if c := last[Check](w); c.Address != onNet || c.Known != (health.Known{}) || c.Health.Readiness != tcp80 {
		t.Errorf("the checks are %+v, want them at the address, from the beginning", c)
	}
	for _, c := range []struct {
		health.Verdict
		reason api.Reason
	}{{isReady, api.ReasonNone}, {notReady, api.ReasonNotReady}, {isReady, api.ReasonNone}} {
		w.judge(c.Verdict)
		o := w.seen()
		if o.State != api.Running || o.Ready != c.Ready || o.Reason != c.reason || o.Detail != c.Text {
			t.Errorf("verdict %+v: observed %+v, want reason %q", c.Verdict, o, c.reason)
		}
		if last[wire.ReadyWorkload](w).Ready != c.Ready {
			t.Errorf("verdict %+v was not passed to the network", c.Verdict)
		}
		if r := last[wire.NodeReport](w); len(r.Observed) != 1 || r.Observed[0].Detail != c.Text {
			t.Errorf("verdict %+v was not reported to the cluster: %+v", c.Verdict, r)
		}
	}
	orders := count[wire.ReadyWorkload](w)
	w.listens(true)
	if count[wire.ReadyWorkload](w) != orders {
		t.Error("the network has the verdict and got it again")
	}
	w.listens(false) // it lost its store
	if count[wire.ReadyWorkload](w) != orders+1 || !w.seen().Ready {
		t.Error("the network lost the verdict, want it repeated")
	}
}

func TestFailedLivenessRestartsWithBackoff(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, lively))
	if in := w.is(api.Running); in.Reason != api.ReasonNone {
		t.Errorf("without a readiness check it is %s, want no reason", in.Reason)
	}
	for i := range 4 {
		w.judge(isFailed)
		in := w.is(api.Failed)
		if in.Reason != api.ReasonUnhealthy || !strings.HasPrefix(in.Detail, isFailed.Text+"; next attempt in ") || in.Restarts != i {
			t.Errorf("failure %d: %+v, want unhealthy with the check and the pause", i+1, in)
		}
		if k := last[wire.KillWorkload](w); k.Attempt != i || k.Grace != 10*time.Second {
			t.Errorf("failure %d: order %+v, want attempt %d with the grace of the SLA", i+1, k, i)
		}
		if n, m := count[Check](w), count[Uncheck](w); n != i+1 || m != i+1 {
			t.Errorf("failure %d: checks began %d times and ended %d times, want %d", i+1, n, m, i+1)
		}
		w.pass(time.Minute)
		w.is(api.Running)
	}
	w.judge(isFailed)
	if in := w.is(api.Failed); in.Reason != api.ReasonTooManyFails || !strings.Contains(in.Detail, isFailed.Text) {
		t.Errorf("after 5 failures it is %+v, want too many with the check", in)
	}
}

// A one-shot that ends with 0 because it was killed has not completed.
func TestAnUnhealthyOneShotHasNotCompleted(t *testing.T) {
	w := newWorld(t)
	w.slow = true
	w.wants(assignment(1, lively, oneShot))
	for _, p := range []wire.WorkloadPhase{wire.WorkloadCreated, wire.WorkloadRunning} {
		w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: p}})
	}
	w.judge(isFailed)
	if in := w.is(api.Running); in.Reason != api.ReasonUnhealthy || !strings.Contains(in.Detail, "it is being restarted") {
		t.Errorf("while it ends it is %+v, want unhealthy", in)
	}
	w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadExited}})
	if in := w.is(api.Failed); in.Reason != api.ReasonUnhealthy || in.Failures != 1 {
		t.Errorf("after it exited with 0 it is %+v, want unhealthy and one failure", in)
	}
}

func TestAKillThatFailsIsRepeated(t *testing.T) {
	w := newWorld(t)
	w.slow = true
	w.wants(assignment(1, lively))
	k := wire.Key{Instance: web, Epoch: 1}
	for _, p := range []wire.WorkloadPhase{wire.WorkloadCreated, wire.WorkloadRunning} {
		w.step(Workload{wire.WorkloadEvent{Key: k, Phase: p}})
	}
	w.judge(isFailed)
	for i := range 3 {
		w.step(Workload{wire.WorkloadEvent{Key: k, Phase: wire.WorkloadFailed, Reason: api.ReasonRuntimeDown}})
		w.is(api.Running)
		w.pass(time.Minute)
		if n := count[wire.KillWorkload](w); n != i+2 {
			t.Errorf("%d kills after %d failures, want %d", n, i+1, i+2)
		}
	}
	w.pass(4 * time.Minute) // no result at all
	if n := count[wire.KillWorkload](w); n < 5 {
		t.Errorf("%d kills, want one more after a kill without a result", n)
	}
	w.wants() // it is withdrawn meanwhile
	w.step(Workload{wire.WorkloadEvent{Key: k, Phase: wire.WorkloadGone}})
	if len(w.c.Instances()) > 0 {
		t.Errorf("still here: %+v", w.c.Instances())
	}
}

func TestARestartedEngineKeepsTheVerdict(t *testing.T) {
	for name, v := range map[string]health.Verdict{"ready": isReady, "not ready": notReady} {
		w := newWorld(t)
		w.wants(assignment(1, gated))
		w.listens(false)
		w.judge(v)
		before := w.seen()
		w.restart()
		if o := w.seen(); o.Ready != v.Ready || o.Reason != before.Reason || o.Detail != before.Detail {
			t.Errorf("%s: after a restart it is %+v, want %+v", name, o, before)
		}
		if c := last[Check](w); c.Known != (health.Known{Started: true, Ready: v.Ready}) || c.Address != onNet {
			t.Errorf("%s: the checks begin with %+v at %s, want what was known", name, c.Known, c.Address)
		}
	}
	// Without its store, it trusts the network.
	w := newWorld(t)
	w.wants(assignment(1, gated))
	w.judge(isReady)
	e := w.has[web]
	e.Address, e.Ready = onNet, true
	w.has[web] = e
	w.loseStore()
	w.gen = 0
	w.wants(assignment(1, gated))
	if o := w.seen(); !o.Ready {
		t.Errorf("without a store it is %+v, want ready as the network says", o)
	}
}

func TestVerdictsOfEarlierAttemptsAreDropped(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, gated))
	old := last[Check](w)
	w.judge(isReady)
	w.exit(web, 1)
	w.step(Health{old.Key, old.Attempt, isReady})
	if o := w.seen(); o.Ready || o.State != api.Failed {
		t.Errorf("a verdict after the exit: %+v, want no effect", o)
	}
	w.pass(time.Minute)
	if o := w.seen(); o.Ready || o.Reason != api.ReasonNotReady {
		t.Errorf("the next attempt is %+v, want not ready", o)
	}
	for _, h := range []Health{
		{old.Key, old.Attempt, isReady},
		{wire.Key{Instance: web, Epoch: 9}, 1, isReady},
		{wire.Key{Instance: "acme/shop.prod.other.prod#0", Epoch: 1}, 1, isReady},
	} {
		w.step(h)
		if w.seen().Ready {
			t.Errorf("%+v made it ready, want no effect", h)
		}
	}
}

func TestTheImagesHealthcheckCountsUnlessTheSLASaysOtherwise(t *testing.T) {
	image := &api.Health{Startup: &api.Check{Command: []string{"check"}}}
	for name, c := range map[string]struct {
		of   func(*api.Microservice)
		want *api.Health
	}{
		"no checks in the SLA": {func(*api.Microservice) {}, image},
		"none":                 {func(m *api.Microservice) { m.Health = &api.Health{None: true} }, nil},
		"other checks":         {lively, &api.Health{Liveness: tcp80}},
	} {
		w := newWorld(t)
		w.slow = true
		w.wants(assignment(1, c.of))
		w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadCreated}})
		w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadRunning, ImageHealth: image}})
		got := last[Check](w).Health
		if (c.want == nil) != got.Empty() || c.want != nil && got != *c.want {
			t.Errorf("%s: the checks are %+v, want %+v", name, got, c.want)
		}
		if reason := w.seen().Reason; (reason == api.ReasonNotReady) != (c.want == image) {
			t.Errorf("%s: it runs with the reason %q", name, reason)
		}
	}
}

func TestChecksEndWithTheWorkload(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, gated))
	w.wants(assignment(2, gated))
	if n, m := count[Check](w), count[Uncheck](w); n != 2 || m != 1 || last[Check](w).Epoch != 2 {
		t.Errorf("a new placement: checks began %d times and ended %d times, want 2 and 1", n, m)
	}
	w.wants()
	if m := count[Uncheck](w); m != 2 || last[Uncheck](w).Epoch != 2 {
		t.Errorf("after the withdrawal checks ended %d times, want 2", m)
	}
	w = newWorld(t)
	w.wants(assignment(1))
	w.wants()
	if n, m := count[Check](w), count[Uncheck](w); n+m > 0 {
		t.Errorf("a service without checks: %d began and %d ended, want none", n, m)
	}
}

// While the runtime does not answer, checks of running workloads go on.
func TestChecksGoOnWithoutTheRuntime(t *testing.T) {
	w := newWorld(t)
	w.wants(assignment(1, gated))
	w.judge(isReady)
	w.step(Info{Info: api.NodeInfo{RuntimeError: "it does not answer"}})
	w.judge(notReady)
	if o := w.seen(); o.Ready || o.Reason != api.ReasonRuntimeDown || o.State != api.Running {
		t.Errorf("not ready while the runtime is down: %+v, want running, unknown and not ready", o)
	}
	w.step(Info{Found: []wire.WorkloadEvent{w.has[web]}, Fresh: true})
	if o := w.seen(); o.Ready || o.Reason != api.ReasonNotReady || o.Detail != notReady.Text {
		t.Errorf("when the runtime is back: %+v, want not ready with the verdict", o)
	}
}

// The verdicts about a workload that was removed without a lease do not hold for the one that is
// created afterwards.
func TestAWorkloadThatIsCreatedAgainIsCheckedAgain(t *testing.T) {
	for name, v := range map[string]health.Verdict{"unhealthy": isFailed, "ready": isReady} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.wants(assignment(1, exclusive, gated))
			w.pass(3 * time.Second)
			w.lease()
			w.is(api.Running)
			w.slow = true // a failed one does not end before its lease
			w.judge(v)
			w.pass(10 * time.Second)
			if last[wire.StopWorkload](w).Epoch != 1 {
				t.Fatal("it was not stopped when its lease ended")
			}
			w.slow = false
			delete(w.has, web)
			w.step(Workload{wire.WorkloadEvent{Key: wire.Key{Instance: web, Epoch: 1}, Phase: wire.WorkloadGone}})
			checks := count[Check](w)
			for range 3 {
				w.pass(time.Second)
				w.lease()
			}
			if in := w.is(api.Running); in.Reason != api.ReasonNotReady || in.Detail == v.Text {
				t.Errorf("created again it is %+v, want not ready before its checks", in)
			}
			if n := count[Check](w); n != checks+1 {
				t.Errorf("its checks began %d times, want once", n-checks)
			}
			w.judge(isReady)
			if in := w.is(api.Running); in.Reason != api.ReasonNone {
				t.Errorf("after its checks passed it is %+v, want no reason", in)
			}
		})
	}
}
