package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/wire"
)

// budgeted is the assignment of an instance of a service with a disruption budget.
func budgeted(n, budget int, m api.Microservice) wire.Assignment {
	a := assignment(n, 1, m)
	a.MaxUnavailable = &budget
	return a
}

// newBudgetedWorld returns a world in which an instance of m, with a disruption budget, runs on the node from.
func newBudgetedWorld(t *testing.T, nodes, budget int, m api.Microservice) (w *world, from api.NodeID) {
	w = newWorld(t, nodes)
	w.wants(budgeted(0, budget, m))
	w.beat()
	return w, w.at(0).Node
}

// expectElsewhere checks that instance 0 runs on another node than from.
func (w *world) expectElsewhere(when string, from api.NodeID) {
	w.t.Helper()
	if in := w.at(0); in.State != api.Running || in.Node == from {
		w.t.Fatalf("%s: got %+v, want it elsewhere", when, in)
	}
}

// permits has the root permit the disruption that an instance requests.
func (w *world) permits(n int) {
	w.t.Helper()
	a := w.want[web.Instance(n)]
	if a.Disrupts = w.observed(a.Instance).Disruption; a.Disrupts == 0 {
		w.t.Fatalf("instance %d requests no disruption", n)
	}
	w.wants(a)
}

// expectWaiting checks that an instance runs where it is and says that it waits for its disruption budget.
func (w *world) expectWaiting(n int, at api.NodeID) {
	w.t.Helper()
	w.expect(n, api.Running, at)
	o := w.observed(web.Instance(n))
	if o.Disruption == 0 || o.Reason != api.ReasonDisruption && o.Reason != api.ReasonMoved || !strings.Contains(o.Detail, "disruption budget") {
		w.t.Fatalf("instance %d: got %+v, want one that waits for its disruption budget", n, o)
	}
}

func TestDrainWaitsForTheDisruptionBudget(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 1, exclusive(1, 100))
	w.step(Drain{Node: from})
	w.pass(time.Minute)
	w.expectWaiting(0, from)
	if r := w.node(from).Remaining; len(r) != 1 || r[0].Stuck || r[0].Reason != api.ReasonDisruption || !strings.Contains(r[0].Why, "max_unavailable 1") {
		t.Errorf("remaining: got %+v, want one that waits for its budget", r)
	}
	number := w.observed(web.Instance(0)).Disruption
	w.restart()
	w.pass(20 * time.Second)
	w.expectWaiting(0, from)
	if got := w.observed(web.Instance(0)).Disruption; got != number {
		t.Errorf("after a restart of the cluster: disruption %d, want %d as before", got, number)
	}
	w.permits(0)
	if o := w.observed(web.Instance(0)); w.record(web.Instance(0)).Node != "" || o.Disruption != number {
		t.Errorf("after the permission: got %+v, want the disruption under way", o)
	}
	w.beat()
	w.restart()
	w.pass(20 * time.Second)
	w.expectElsewhere("after the permission", from)
	if o := w.observed(web.Instance(0)); o.Disruption != 0 || o.Reason != "" {
		t.Errorf("when it is available again: got %+v, want no disruption", o)
	}
	// The permission was for one disruption.
	w.step(Cordon{Node: from})
	w.step(Drain{Node: w.at(0).Node})
	w.pass(20 * time.Second)
	w.expectWaiting(0, w.at(0).Node)
	w.checkBooks()
	w.checkExclusive()
}

func TestEndOfADrainEndsItsRequestOfADisruption(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 1, exclusive(1, 100))
	w.step(Drain{Node: from})
	w.beat()
	w.expectWaiting(0, from)
	late := w.want[web.Instance(0)]
	late.Disrupts = w.observed(web.Instance(0)).Disruption
	w.step(Cordon{Node: from})
	w.beat()
	if o := w.observed(web.Instance(0)); o.Disruption != 0 || o.Reason != "" {
		t.Errorf("after uncordon: got %+v, want no disruption", o)
	}
	w.wants(late)
	w.expect(0, api.Running, from)
	w.step(Drain{Node: from})
	w.pass(20 * time.Second)
	w.expectWaiting(0, from)
}

func TestForcedDrainOverridesTheDisruptionBudget(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 0, exclusive(1, 100))
	w.step(Drain{Node: from})
	w.pass(20 * time.Second)
	w.expectWaiting(0, from)
	if r := w.node(from).Remaining; len(r) != 1 || !r[0].Stuck || !strings.Contains(r[0].Why, "drain --force") {
		t.Errorf("remaining: got %+v, want one that never moves by itself", r)
	}
	w.step(Drain{Node: from, Force: true})
	if o := w.observed(web.Instance(0)); o.State == api.Running || o.Disruption != 0 || !strings.Contains(o.Detail, "regardless of the disruption budget") {
		t.Errorf("after drain --force: got %+v, want it stopped, with a record of the override", o)
	}
	w.pass(20 * time.Second)
	w.expectElsewhere("after drain --force", from)
}

func TestDisruptionBudgetDoesNotDelayMovesWithoutInterruption(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 0, spec(1, 100))
	w.step(Drain{Node: from})
	w.pass(20 * time.Second)
	w.expectElsewhere("make before break with max_unavailable 0", from)
}

// TestOldPlacementIsKeptUntilTheNewOneIsReady checks that a health check that never passes ends no available
// instance of a service with a disruption budget.
func TestOldPlacementIsKeptUntilTheNewOneIsReady(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 0, spec(1, 100))
	for id := range w.nodes {
		if id != from {
			w.nodes[id].slow, w.nodes[id].reason = true, api.ReasonUnhealthy
		}
	}
	w.step(Drain{Node: from})
	w.pass(30 * time.Minute)
	if _, kept := w.nodes[from].want[web.Instance(0)]; !kept {
		t.Error("the old placement has ended, and the new one is not healthy")
	}
}

func TestFailedInstancesNeedNoDisruptionBudget(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 0, exclusive(1, 100))
	w.step(Drain{Node: from})
	w.expectWaiting(0, from)
	w.says(from, 0, func(o *api.Observed) { o.State, o.Reason = api.Failed, api.ReasonExited })
	w.pass(20 * time.Second)
	w.expectElsewhere("after its failure", from)
}

func TestRequestedMoveWaitsForTheDisruptionBudget(t *testing.T) {
	w, from := newBudgetedWorld(t, 3, 1, exclusive(1, 100))
	to := api.NodeID("n2")
	if to == from {
		to = "n1"
	}
	if err := w.moves(0, to); err != nil {
		t.Fatal(err)
	}
	w.expectWaiting(0, from)
	w.expectMoving(0, "disruption budget")
	w.restart()
	w.pass(10 * time.Second)
	w.expectMoving(0, "disruption budget")
	w.permits(0)
	w.pass(20 * time.Second)
	w.expectStill(0, to)
	if o := w.observed(web.Instance(0)); o.Disruption != 0 {
		t.Errorf("after the move: disruption %d, want none", o.Disruption)
	}

	// A move that has become impossible says so, and releases the budget.
	if err := w.moves(0, from); err != nil {
		t.Fatal(err)
	}
	w.expectWaiting(0, to)
	w.step(Cordon{Node: from, On: true})
	w.permits(0)
	if o := w.observed(web.Instance(0)); o.Disruption != 0 || !strings.HasPrefix(o.Detail, api.NotMoved) {
		t.Errorf("its target is cordoned: got %+v, want that it has not moved", o)
	}
	w.expect(0, api.Running, to)
}

func TestMoveOfVolumesWaitsForTheDisruptionBudget(t *testing.T) {
	w, from := newMovingWorld(t, 2)
	w.wants(budgeted(0, 1, withMovingDisk(64)))
	w.step(Drain{Node: from})
	w.pass(20 * time.Second)
	w.expectWaiting(0, from)
	if all := w.c.MoveTasks(); len(all) > 0 {
		t.Fatalf("before the permission: tasks %+v, want none", all)
	}
	w.permits(0)
	first := w.task(moves.Copying)
	w.pass(4 * time.Second)
	w.expect(0, api.Running, from)
	if o := w.observed(web.Instance(0)); o.Disruption == 0 {
		t.Error("the disruption has ended, and its last part is still to come")
	}
	w.fault(first, 100)
	w.step(Cordon{Node: from})
	w.beat()
	if o := w.observed(web.Instance(0)); o.Disruption != 0 {
		t.Errorf("the drain has ended: got %+v, want no disruption", o)
	}
}

func TestEndOfTheBudgetEndsTheWait(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 0, exclusive(1, 100))
	w.step(Drain{Node: from})
	w.expectWaiting(0, from)
	w.wants(assignment(0, 1, exclusive(1, 100)))
	w.pass(20 * time.Second)
	w.expectElsewhere("without a budget", from)
}

// TestWaitEndsWithItsPlacement checks that a wait ends with the placement that it is about.
func TestWaitEndsWithItsPlacement(t *testing.T) {
	w, from := newBudgetedWorld(t, 2, 1, exclusive(1, 100))
	w.step(Drain{Node: from})
	w.expectWaiting(0, from)
	w.nodes[from].off = true
	w.pass(time.Minute)
	w.expectElsewhere("its node is silent", from)
	if o := w.observed(web.Instance(0)); o.Disruption != 0 {
		t.Errorf("after a failure: got %+v, want no disruption", o)
	}
}
