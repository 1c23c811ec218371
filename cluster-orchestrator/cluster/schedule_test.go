package cluster

import (
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
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

// states counts the instances of the service by state.
func (w *world) states() map[api.State]int {
	out := map[api.State]int{}
	for _, in := range w.c.Instances() {
		out[in.State]++
	}
	return out
}

func TestRunsOverlapOnOtherInstancesOfTheirLane(t *testing.T) {
	w := newWorld(t, 2)
	var all []wire.Assignment
	for n := range 6 {
		all = append(all, assignment(n, 1, nightly(func(s *api.Schedule) { s.Overlap, s.RunsAtOnce = api.OverlapAllow, 3 })))
	}
	w.wants(all...)
	for run := 1; run <= 3; run++ {
		w.until(time.Duration(10*run)*time.Minute + 10*time.Second)
		if n := w.states()[api.Running]; n != 2*run {
			t.Fatalf("%d instances run after %d times, want 2 for each", n, run)
		}
		w.restart()
		w.ack()
	}
	w.until(40*time.Minute + 10*time.Second)
	if n := w.states()[api.Running]; n != 6 {
		t.Fatalf("%d instances run, want the 6 that exist", n)
	}
	w.exits(4)
	w.until(50*time.Minute + 10*time.Second)
	for n, want := range map[int]string{
		0: "40m0s skipped, 50m0s skipped, 10m0s running", 1: "20m0s running", 2: "30m0s running",
		3: "40m0s skipped, 10m0s running", 4: "20m0s completed, 50m0s running", 5: "30m0s running",
	} {
		if got := w.runs(n); got != want {
			t.Errorf("instance %d: %s, want %s", n, got, want)
		}
	}
	w.checkBooks()
}

// A crash may lose what other instances of a lane recorded about a time that one has taken.
func TestALaneTakesNoTimeTwiceAfterACrash(t *testing.T) {
	w := newWorld(t, 1)
	lane := func(n int) wire.Assignment {
		return assignment(n, 1, nightly(func(s *api.Schedule) { s.Overlap, s.RunsAtOnce = api.OverlapAllow, 2 }))
	}
	w.wants(lane(0), lane(1))
	w.until(9 * time.Minute)
	key := placement.KindInstance + "\x00" + string(web.Instance(1))
	older := w.disk[key]
	w.until(11 * time.Minute)
	w.disk[key] = older
	w.restart()
	w.ack()
	w.until(12 * time.Minute)
	if a, b := w.runs(0), w.runs(1); a != "10m0s running" || b != "" {
		t.Fatalf("runs: %q and %q", a, b)
	}
	w.drops(web.Instance(0)) // the one that has taken it
	w.until(19 * time.Minute)
	if in := w.at(1); in.State != api.Dormant || w.runs(1) != "" {
		t.Errorf("the other is %s, runs: %s", in.State, w.runs(1))
	}
	w.until(20*time.Minute + 10*time.Second)
	if got := w.runs(1); got != "20m0s running" {
		t.Errorf("at the next time: %s", got)
	}
}

func TestRunsOfAScheduleTakeTurns(t *testing.T) {
	w := newWorld(t, 1)
	job := func(n int) wire.Assignment {
		m := nightly()
		m.Parallelism = 2
		return assignment(n, 1, m)
	}
	w.wants(job(0), job(1), job(2), job(3), job(4))
	w.until(10*time.Minute + 10*time.Second)
	if got := w.states(); got[api.Running] != 2 || got[api.Dormant] != 3 {
		t.Fatalf("at the time %v, want 2 running", got)
	}
	if in := w.at(4); !strings.Contains(in.Detail, "waits for its turn") || w.runs(4) != "10m0s waiting" {
		t.Errorf("instance 4: %s, runs: %s", in.Detail, w.runs(4))
	}
	w.until(17 * time.Minute) // beyond the starting deadline: the run has begun
	w.exits(1)
	w.restart()
	w.ack()
	w.until(18 * time.Minute)
	if got := w.runs(2); got != "10m0s running" || w.states()[api.Running] != 2 {
		t.Fatalf("when one has ended, instance 2 has %s, and %v", got, w.states())
	}
	w.drops(web.Instance(0)) // it runs
	w.until(18*time.Minute + 30*time.Second)
	if got := w.runs(3); got != "10m0s running" || w.runs(4) != "10m0s waiting" {
		t.Fatalf("when one was removed, instance 3 has %s, instance 4 %s", got, w.runs(4))
	}
	w.until(21 * time.Minute)
	for n, want := range map[int]string{
		1: "10m0s completed, 20m0s waiting", 2: "20m0s skipped, 10m0s running", 3: "20m0s skipped, 10m0s running", 4: "20m0s skipped, 10m0s waiting",
	} {
		if got := w.runs(n); got != want {
			t.Errorf("instance %d: %s, want %s", n, got, want)
		}
	}
	w.exits(2)
	w.exits(3)
	w.until(22 * time.Minute)
	w.exits(4)
	w.exits(1)
	w.until(23 * time.Minute)
	if got := w.states(); got[api.Dormant] != 4 || w.runs(1) != "10m0s completed, 20m0s completed" {
		t.Errorf("at the end %v, instance 1: %s", got, w.runs(1))
	}
	w.checkBooks()
}

// The turn of an instance that finds no room passes on when it is given up.
func TestATurnWithoutRoomPassesOn(t *testing.T) {
	w := newWorld(t, 1)
	big, small := nightly(), nightly()
	big.Parallelism, small.Parallelism, big.VCPUs = 1, 1, 1000
	wide := assignment(0, 1, big)
	wide.SpecRev = 2
	w.wants(wide, assignment(1, 1, small))
	w.until(14 * time.Minute)
	if a, b := w.runs(0), w.runs(1); a != "10m0s waiting" || b != "10m0s waiting" {
		t.Fatalf("runs: %s and %s", a, b)
	}
	w.until(16 * time.Minute)
	if a, b := w.at(0).Runs, w.runs(1); a[0].Result != api.RunMissed || !strings.Contains(a[0].Detail, "vcpus") || b != "10m0s running" {
		t.Errorf("runs: %+v and %s", a, b)
	}
}
