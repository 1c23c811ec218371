package root

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func TestParallelismLimitsWhatIsUnderWay(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(5, func(m *api.Microservice) { m.OneShot, m.Parallelism = true, 2 })
	for ended := 0; ended < 5; ended++ {
		w.settle()
		if got, want := w.running(), min(2, 5-ended); got != want {
			t.Fatalf("%d run after %d have completed, want %d", got, ended, want)
		}
		for _, in := range w.c.Instances("acme") {
			if in.State == api.Running {
				w.reports("a", in.Number, func(o *api.Observed) { o.State = api.Completed })
				break
			}
		}
		w.restart()
	}
	w.settle()
	if s, _ := w.c.Service(web); s.Completed != 5 || len(w.c.Instances("acme")) != 5 {
		t.Errorf("%d of 5 have completed", s.Completed)
	}
}

func TestAnApplicationIsRemovedAfterItsTimeToLive(t *testing.T) {
	w := newWorld(t, "a")
	job := func(m *api.Microservice) { m.OneShot, m.TimeToLive = true, 600 }
	w.apply(2, job)
	w.settle()
	w.reports("a", 0, func(o *api.Observed) { o.State = api.Completed })
	w.pass(20 * time.Minute)
	if n := len(w.c.Instances("acme")); n != 2 {
		t.Fatalf("%d instances while one still runs, want 2", n)
	}
	w.reports("a", 1, failedForGood)
	w.twins["a"].off = true // a cluster that is away does not delay it, but keeps the instances
	w.pass(5 * time.Minute)
	w.restart()
	if a, ok := w.c.App(shop); !ok || a.Leaving {
		t.Fatal("it is removed before its time to live is over")
	}
	w.pass(6 * time.Minute)
	if a, ok := w.c.App(shop); !ok || !a.Leaving {
		t.Fatalf("11 minutes after the end it exists: %v, leaving: %v", ok, a.Leaving)
	}
	w.twins["a"].off = false
	w.settle()
	if _, ok := w.c.App(shop); ok || len(w.c.Instances("acme")) > 0 {
		t.Error("it still exists")
	}
	w.checkBooks()
	w.apply(2, job)
	w.settle()
	if w.running() != 2 {
		t.Errorf("applied again, %d run", w.running())
	}
}

// TestAClusterCannotTakeBackRuns: an older store of a cluster, or a later cluster, gets the newest
// scheduled time that was decided. Times that no clock can have are ignored.
func TestAClusterCannotTakeBackRuns(t *testing.T) {
	w := newWorld(t, "a")
	w.twins["a"].features = []string{api.FeatureSchedule}
	w.settle()
	w.apply(1, func(m *api.Microservice) {
		m.OneShot, m.Exclusive, m.Schedule = true, true, &api.Schedule{Cron: "@daily"}
	})
	w.settle()
	at := w.now.UTC().Truncate(time.Hour)
	tells := func(decided time.Time, runs ...api.Run) {
		w.told = nil
		w.reports("a", 0, func(o *api.Observed) {
			o.State, o.Reason, o.Decided, o.Runs = api.Dormant, api.ReasonScheduled, decided, runs
		})
	}
	tells(at, api.Run{At: at, Result: api.RunCompleted})
	if in, _ := w.c.Instance(web.Instance(0)); in.State != api.Dormant || len(in.Runs) != 1 || !w.record(in.ID).Decided.Equal(at) {
		t.Fatalf("it is %s with %d runs", in.State, len(in.Runs))
	}
	if s, _ := w.c.Service(web); s.Dormant != 1 {
		t.Errorf("%d are dormant, want 1", s.Dormant)
	}
	tells(at.Add(-time.Hour))
	if n := len(w.told); n == 0 || len(w.told[n-1].Runs) != 1 || !w.told[n-1].Runs[0].Decided.Equal(at) {
		t.Errorf("the cluster is told %+v, want that %s is decided", w.told, at)
	}
	tells(at.AddDate(10, 0, 0))
	in := w.record(web.Instance(0))
	if !in.Decided.Equal(at) {
		t.Errorf("a time in ten years is believed: %s", in.Decided)
	}
	if a := in.Assignment("a", w.now); !a.Decided.Equal(at) {
		t.Errorf("the next cluster is told %s, want %s", a.Decided, at)
	}
}

// A cluster cannot make an instance dormant whose SLA does not allow it.
func TestOnlyScheduledInstancesAreDormant(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.settle()
	w.reports("a", 0, func(o *api.Observed) { o.State, o.Reason = api.Dormant, api.ReasonScheduled })
	if in, _ := w.c.Instance(web.Instance(0)); in.State != api.Running {
		t.Errorf("it is %s", in.State)
	}
}

// A cluster of an earlier release would ignore the schedule and run the service at once.
func TestAnEarlierClusterGetsNoSchedule(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1, func(m *api.Microservice) {
		m.OneShot, m.Exclusive, m.Schedule = true, true, &api.Schedule{Cron: "@daily"}
	})
	w.settle()
	if in, _ := w.c.Instance(web.Instance(0)); in.Cluster != "" {
		t.Errorf("it is on %s", in.Cluster)
	}
}

// Instances of a schedule that take turns are in one cluster, also after an SLA that makes them do so.
func TestInstancesThatTakeTurnsAreInOneCluster(t *testing.T) {
	w := newWorld(t, "a", "b", "old")
	for _, id := range []api.ClusterID{"a", "b"} {
		w.twins[id].features = []string{api.FeatureSchedule, api.FeatureTurns}
	}
	w.twins["old"].features = []string{api.FeatureSchedule}
	w.settle()
	where := func() map[api.ClusterID]int {
		out := map[api.ClusterID]int{}
		for _, in := range w.c.Instances("acme") {
			out[in.Cluster]++
		}
		return out
	}
	w.apply(6, func(m *api.Microservice) {
		m.OneShot, m.Exclusive, m.Schedule = true, true, &api.Schedule{Cron: "@daily"}
	})
	w.settle()
	if got := where(); len(got) < 2 {
		t.Fatalf("by themselves they are in %v, want them spread", got)
	}
	for name, change := range map[string]func(*api.Microservice){
		"parallelism": func(m *api.Microservice) { m.Parallelism = 2 },
		"overlap":     func(m *api.Microservice) { m.Schedule.Overlap = api.OverlapAllow },
	} {
		w.apply(6, func(m *api.Microservice) {
			m.OneShot, m.Exclusive, m.Schedule = true, true, &api.Schedule{Cron: "@daily"}
			change(m)
		})
		w.settle()
		w.restart()
		w.settle()
		if got := where(); len(got) != 1 || got["a"]+got["b"] != 6 {
			t.Errorf("%s: they are in %v, want all in a or b", name, got)
		}
	}
	home := w.c.Instances("acme")[0].Cluster
	w.apply(8, func(m *api.Microservice) {
		m.OneShot, m.Exclusive, m.Schedule, m.Parallelism = true, true, &api.Schedule{Cron: "@daily"}, 2
		m.Constraints = []api.Constraint{{Type: "clusters", Allowed: []string{map[api.ClusterID]string{"a": "b", "b": "a"}[home]}}}
	})
	w.settle()
	if got := where(); len(got) != 1 || got[home] > 0 {
		t.Errorf("an SLA that names the other cluster than %s leaves them in %v", home, got)
	}
	w.checkBooks()
}
