package cluster

import (
	"math"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// says makes the node of instance #n observe o.
func (w *world) says(id api.NodeID, n int, change func(*api.Observed)) {
	w.t.Helper()
	tw := w.nodes[id]
	o, ok := tw.has[web.Instance(n)]
	if !ok {
		w.t.Fatalf("%s does not have instance %d", id, n)
	}
	change(&o)
	tw.has[web.Instance(n)] = o
	w.speak(id)
}

func jobs(attempts int) api.Microservice {
	m := spec(1, 64)
	m.OneShot, m.MaxAttempts = true, attempts
	return m
}

// TestCountsSurviveAMove: the next node gets the numbers of restarts and failures. No node can
// reduce them, or raise them absurdly.
func TestCountsSurviveAMove(t *testing.T) {
	w := newWorld(t, 2)
	a := assignment(0, 1, jobs(100))
	a.Restarts, a.Failures = 3, 2 // in another cluster
	w.wants(a)
	w.beat()
	first := w.at(0).Node
	w.says(first, 0, func(o *api.Observed) { o.Restarts, o.Failures = 7, 5 })
	w.says(first, 0, func(o *api.Observed) { o.Restarts, o.Failures = -1, math.MinInt })
	w.restart()
	w.beat()
	w.step(Drain{Node: first})
	w.beat()
	in := w.at(0)
	if in.Node == first || in.Restarts != 7 || in.Failures != 5 {
		t.Fatalf("on %s after %d restarts and %d failures, want 7 and 5 elsewhere than on %s", in.Node, in.Restarts, in.Failures, first)
	}
	if got := w.nodes[in.Node].want[web.Instance(0)]; got.Restarts != 7 || got.Failures != 5 {
		t.Errorf("its node was told of %d restarts and %d failures", got.Restarts, got.Failures)
	}
	w.says(in.Node, 0, func(o *api.Observed) { o.Restarts, o.Failures = math.MaxInt, math.MaxInt })
	if in := w.at(0); in.Restarts > 1_000_000 || in.Failures > api.MaxAttempts {
		t.Errorf("%d restarts and %d failures are believed", in.Restarts, in.Failures)
	}
	w.checkBooks()
}

// TestFailedOneShotsAreNotPlacedAgain: a finally failed instance takes no capacity. Neither the
// loss of its node nor a drain, a late report or the removal of its node revives it.
func TestFailedOneShotsAreNotPlacedAgain(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, jobs(3)))
	w.beat()
	at := w.at(0).Node
	w.says(at, 0, func(o *api.Observed) {
		o.State, o.Reason, o.Detail, o.Failures = api.Failed, api.ReasonAttemptsSpent, "3 of 3 attempts failed", 3
	})
	w.checkBooks()
	if n := w.node(at); n.Allocated != (api.Resources{}) {
		t.Errorf("it still takes %s", n.Allocated)
	}
	over := func(when string) {
		t.Helper()
		in := w.at(0)
		if in.State != api.Failed || in.Reason != api.ReasonAttemptsSpent || in.Epoch != api.EpochOf(1, 1) {
			t.Fatalf("%s it is %s (%s) as %s on %q", when, in.State, in.Reason, in.Epoch, in.Node)
		}
		w.checkBooks()
	}
	w.says(at, 0, func(o *api.Observed) { o.State, o.Reason = api.Running, api.ReasonNone })
	over("after a late report")
	w.restart()
	w.beat()
	over("after a restart")
	w.step(Drain{Node: at})
	w.beat()
	over("on a drained node")
	w.nodes[at].off = true
	w.pass(time.Minute)
	over("on a lost node")
	w.step(RemoveNode{at})
	w.pass(time.Minute)
	over("without its node")
	a := assignment(0, 2, jobs(4))
	a.SpecRev = 2
	w.wants(a)
	w.beat()
	if in := w.at(0); in.State != api.Running || in.Failures != 0 {
		t.Errorf("with a new SLA it is %s after %d failures", in.State, in.Failures)
	}
}
