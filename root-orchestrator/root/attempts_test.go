package root

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// reports makes a cluster report instance #n once.
func (w *world) reports(id api.ClusterID, n int, change func(*api.Observed)) {
	w.t.Helper()
	tw := w.twins[id]
	tw.run()
	o, ok := tw.has[web.Instance(n)]
	if !ok {
		w.t.Fatalf("%s does not have instance %d", id, n)
	}
	change(&o)
	tw.has[web.Instance(n)] = o
	w.do(tw.report())
}

func failedForGood(o *api.Observed) {
	o.State, o.Reason, o.Detail, o.Failures, o.Restarts = api.Failed, api.ReasonAttemptsSpent, "6 of 6 attempts failed", 6, 5
}

// Restarts are counted across clusters and reset by a new SLA.
func TestRestartsSurviveAChangeOfCluster(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.settle()
	w.join("b", 10)
	w.reports("a", 0, func(o *api.Observed) { o.Restarts, o.Failures = 4, 3 })
	w.reports("a", 0, func(o *api.Observed) { o.Restarts, o.Failures = -7, -7 })
	w.restart()
	w.twins["a"].off = true
	w.pass(2 * time.Minute)
	in, _ := w.c.Instance(web.Instance(0))
	if in.Cluster != "b" || in.Restarts != 4 || in.Failures != 3 {
		t.Fatalf("on %s with %d restarts and %d failures, want b with 4 and 3", in.Cluster, in.Restarts, in.Failures)
	}
	if a := w.twins["b"].want[in.ID]; a.Restarts != 4 || a.Failures != 3 {
		t.Errorf("b was told of %d restarts and %d failures, want Restarts 4, Failures 3", a.Restarts, a.Failures)
	}
	w.apply(1, func(m *api.Microservice) { m.Memory++ })
	w.settle()
	if in, _ := w.c.Instance(web.Instance(0)); in.Restarts != 0 || in.Failures != 0 {
		t.Errorf("a new SLA begins with %d restarts and %d failures, want Restarts 0, Failures 0", in.Restarts, in.Failures)
	}
}

// An instance that failed for good is not placed again, even if its cluster is lost.
func TestFailedOneShotsAreCountedAndNotPlacedAgain(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(2, func(m *api.Microservice) { m.OneShot = true })
	w.settle()
	w.reports("a", 0, func(o *api.Observed) { o.State = api.Completed })
	w.reports("a", 1, failedForGood)
	counted := func() {
		t.Helper()
		s, _ := w.c.Service(web)
		a, _ := w.c.App(shop)
		if s.Running != 0 || s.Completed != 1 || s.Failed != 1 || a.Completed != 1 || a.Failed != 1 {
			t.Errorf("the service has %d running, %d completed, %d failed; the application %d and %d",
				s.Running, s.Completed, s.Failed, a.Completed, a.Failed)
		}
	}
	counted()
	w.reports("a", 1, func(*api.Observed) {}) // a late report that it runs
	counted()
	w.join("b", 10)
	w.twins["a"].off = true
	w.pass(5 * time.Minute)
	counted()
	w.restart()
	w.must(SetGrant{ID: "a", Grant: api.Grant{Tenants: []api.Tenant{"rival"}}})
	w.pass(time.Minute)
	counted()
	w.must(RemoveCluster{ID: "a"})
	w.pass(time.Minute)
	counted()
	if n := len(w.twins["b"].want); n != 0 {
		t.Errorf("b is to have %d, want 0", n)
	}
	w.apply(2, func(m *api.Microservice) { m.OneShot, m.MaxAttempts = true, 9 })
	w.settle()
	if n := len(w.twins["b"].want); n != 2 {
		t.Errorf("with a new SLA b is to have %d, want 2", n)
	}
}
