package cluster

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// nightly returns an exclusive one-shot that runs every ten minutes.
func nightly(change ...func(*api.Schedule)) api.Microservice {
	m := jobs(1)
	m.Exclusive, m.Schedule = true, &api.Schedule{Cron: "*/10 * * * *", StartingDeadline: 300}
	for _, c := range change {
		c(m.Schedule)
	}
	return m
}

func (w *world) runs(n int) string {
	w.t.Helper()
	var out []string
	for _, r := range w.at(n).Runs {
		out = append(out, fmt.Sprintf("%s %s", r.At.Sub(epoch), r.Result))
	}
	return strings.Join(out, ", ")
}

// until lets time pass in steps of a heartbeat.
func (w *world) until(at time.Duration) {
	w.t.Helper()
	for w.now.Before(epoch.Add(at)) {
		w.now = w.now.Add(min(2*time.Second, epoch.Add(at).Sub(w.now)))
		w.beat()
	}
}

func (w *world) exits(n int) {
	w.t.Helper()
	zero := 0
	w.says(w.at(n).Node, n, func(o *api.Observed) { o.State, o.ExitCode = api.Completed, &zero })
}

func TestAScheduleRunsWithoutTheRoot(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, nightly()))
	w.beat()
	if in := w.at(0); in.State != api.Dormant || in.Reason != api.ReasonScheduled || in.Node != "" || !strings.Contains(in.Detail, "2026-01-01T00:10:00Z") {
		t.Fatalf("at first it is %s (%s) on %q: %s", in.State, in.Reason, in.Node, in.Detail)
	}
	for run := 1; run <= 3; run++ {
		w.until(time.Duration(10*run)*time.Minute - time.Second)
		if in := w.at(0); in.State != api.Dormant {
			t.Fatalf("before run %d it is %s", run, in.State)
		}
		w.until(time.Duration(10*run)*time.Minute + 10*time.Second)
		in := w.at(0)
		if in.State != api.Running {
			t.Fatalf("run %d: it is %s: %s", run, in.State, in.Detail)
		}
		w.exits(0)
		if in := w.at(0); in.State != api.Dormant || w.node(in.Node).Allocated != (api.Resources{}) {
			t.Fatalf("after run %d it is %s and takes %s", run, in.State, w.node(in.Node).Allocated)
		}
		w.checkBooks()
		w.restart()
		w.beat()
	}
	if got := w.runs(0); got != "10m0s completed, 20m0s completed, 30m0s completed" {
		t.Errorf("runs: %s", got)
	}
	delete(w.want, web.Instance(0))
	w.desire()
	w.until(31 * time.Minute)
	if len(w.c.Instances()) > 0 {
		t.Errorf("it is still there after its removal: %+v", w.record(web.Instance(0)))
	}
}

// A crash before or after any save repeats no run.
func TestACrashRepeatsNoRun(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, nightly()))
	w.until(10*time.Minute - time.Second)
	w.now = epoch.Add(10*time.Minute + time.Second)
	w.c.Step(w.now, Tick{}) // the core decides the run, and crashes before anything is saved
	w.restart()
	w.ack()
	w.until(10*time.Minute + 20*time.Second)
	if in := w.at(0); in.State != api.Running || w.runs(0) != "10m0s running" {
		t.Fatalf("after the first crash it is %s, runs: %s", in.State, w.runs(0))
	}
	w.restart()
	w.until(10*time.Minute + 30*time.Second)
	w.exits(0)
	w.restart()
	w.ack()
	w.until(19 * time.Minute)
	if got := w.runs(0); got != "10m0s completed" || w.at(0).Epoch != api.EpochOf(1, 1) {
		t.Errorf("runs: %s under epoch %s", got, w.at(0).Epoch)
	}
}

// The store is an older copy: the root knows which times have run.
func TestAnOlderStoreRepeatsNoRun(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, nightly()))
	w.until(9 * time.Minute)
	older := maps.Clone(w.disk)
	w.until(11 * time.Minute)
	w.exits(0)
	decided := w.report.Observed[len(w.report.Observed)-1].Decided
	w.until(12 * time.Minute)
	w.disk = older
	w.restart()
	w.until(12*time.Minute + 20*time.Second)
	if in := w.at(0); in.State != api.Dormant {
		t.Fatalf("before the root has answered it is %s, runs: %s", in.State, w.runs(0))
	}
	w.step(Ack{wire.ReportAck{Boot: w.report.Boot, Seq: w.report.Seq, Runs: []wire.RunMark{{Instance: web.Instance(0), Decided: decided}}}})
	w.until(13 * time.Minute)
	if in := w.at(0); in.State != api.Dormant || decided != epoch.Add(10*time.Minute) {
		t.Fatalf("it is %s, runs: %s; the root knew of %s", in.State, w.runs(0), decided)
	}
	w.until(20*time.Minute + 10*time.Second)
	if w.at(0).State != api.Running {
		t.Errorf("at the next time it is %s: %s", w.at(0).State, w.at(0).Detail)
	}
}

func TestOverlapsAndMissedTimes(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*api.Schedule)
		play   func(w *world)
		want   string
	}{
		{"forbid", func(*api.Schedule) {}, func(w *world) { w.until(21 * time.Minute) }, "20m0s skipped, 10m0s running"},
		{"replace", func(s *api.Schedule) { s.Overlap = api.OverlapReplace }, func(w *world) { w.until(21 * time.Minute) }, "10m0s stopped, 20m0s running"},
		{"wait", func(s *api.Schedule) { s.Overlap = api.OverlapWait }, func(w *world) {
			w.until(21 * time.Minute)
			w.exits(0)
			w.until(22 * time.Minute)
		}, "10m0s completed, 20m0s running"},
		{"suspend", func(s *api.Schedule) { s.Suspend = true }, func(w *world) { w.until(21 * time.Minute) }, ""},
		{"no room", func(*api.Schedule) {}, func(w *world) {
			w.until(11 * time.Minute)
			w.exits(0)
			w.step(Drain{Node: "n0"})
			w.until(26 * time.Minute)
		}, "10m0s completed, 20m0s missed"},
		{"a lost node", func(*api.Schedule) {}, func(w *world) {
			w.until(10*time.Minute + 10*time.Second)
			w.join("n1", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
			w.nodes["n0"].off = true
			w.until(11 * time.Minute)
			if in := w.at(0); in.Node != "n1" || in.State != api.Running {
				w.t.Errorf("it is %s on %q, want it on n1", in.State, in.Node)
			}
		}, "10m0s running"},
		{"an update during a run", func(*api.Schedule) {}, func(w *world) {
			w.until(11 * time.Minute)
			w.wants(assignment(0, 2, nightly()))
			w.until(12 * time.Minute)
		}, "10m0s stopped"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.wants(assignment(0, 1, nightly(c.change)))
			c.play(w)
			if got := w.runs(0); got != c.want {
				t.Errorf("runs: %s, want %s (it is %s: %s)", got, c.want, w.at(0).State, w.at(0).Detail)
			}
			w.checkBooks()
		})
	}
}

// A node cannot end a run that it does not have.
func TestOnlyTheNodeOfARunEndsIt(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, nightly()))
	w.until(10*time.Minute + 10*time.Second)
	in := w.at(0)
	other := api.NodeID("n0")
	if in.Node == other {
		other = "n1"
	}
	zero := 0
	w.nodes[other].has[web.Instance(0)] = api.Observed{Instance: web.Instance(0), Epoch: in.Epoch, State: api.Completed, ExitCode: &zero}
	w.speak(other)
	stale := w.nodes[in.Node].has[web.Instance(0)]
	stale.Epoch, stale.State = in.Epoch-1, api.Completed
	w.nodes[in.Node].has[web.Instance(0)] = stale
	w.speak(in.Node)
	if now := w.at(0); now.State != api.Running || w.runs(0) != "10m0s running" {
		t.Errorf("it is %s, runs: %s", now.State, w.runs(0))
	}
}

// A tenant with many schedules gets its share of starts, and another tenant's run is not late.
func TestManySchedulesOfATenantDelayNobodyElse(t *testing.T) {
	w := newWorld(t, 1)
	var all []wire.Assignment
	for n := range 500 {
		a := assignment(n, 1, nightly())
		a.Instance = api.InstanceID(strings.Replace(string(a.Instance), "acme/", fmt.Sprintf("acme/team%d/", n), 1)) // tenants below one
		all = append(all, a)
	}
	other := assignment(0, 1, nightly())
	other.Instance = "zeta/shop.prod.web.prod#0"
	w.wants(append(all, other)...)
	w.until(10 * time.Minute)
	w.now = w.now.Add(time.Second)
	w.step(Tick{})
	begun := 0
	for _, in := range w.c.Instances() {
		if in.State != api.Dormant {
			begun++
		}
	}
	if in, _ := w.c.Instance(other.Instance); in.State == api.Dormant || begun > 100 {
		t.Errorf("the other tenant's instance is %s, and %d runs began at once", in.State, begun)
	}
}
