package cluster

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
)

// moves requests a move, and returns the error.
func (w *world) moves(n int, to api.NodeID) error {
	w.t.Helper()
	return w.step(MoveInstance{web.Instance(n), to}).Err
}

func TestRequestedMoveIsMakeBeforeBreak(t *testing.T) {
	for _, to := range []api.NodeID{"n2", ""} {
		w := newWorld(t, 3)
		w.wants(assignment(0, 1, spec(1, 100)), assignment(1, 1, spec(1, 100)))
		w.beat()
		from, other := w.at(0).Node, w.at(1).Node
		if from == "n2" {
			from, other = other, from
		}
		n := 0
		if w.at(1).Node == from {
			n = 1
		}
		old := w.at(n).Epoch
		for id := range w.nodes {
			w.nodes[id].slow = id != from
		}
		if err := w.moves(n, to); err != nil {
			t.Fatalf("move to %q: %v", to, err)
		}
		in := w.at(n)
		if in.Node == from || to != "" && in.Node != to || in.Epoch <= old {
			t.Fatalf("after the request to move from %s to %q: got %+v", from, to, in)
		}
		w.expectMoving(n, "its earlier placement continues until the new one is ready")
		if _, kept := w.nodes[from].want[web.Instance(n)]; !kept {
			t.Error("the old placement is ended before the new one runs")
		}
		if err := w.moves(n, in.Node); err != nil {
			t.Errorf("the same request again: got %v, want no effect", err)
		}
		if err := w.moves(n, from); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "moving already") {
			t.Errorf("another move meanwhile: got %v, want ErrConflict", err)
		}
		w.restart()
		w.expectMoving(n, "its earlier placement continues until the new one is ready")
		w.beat()
		w.says(in.Node, n, func(o *api.Observed) { o.State = api.Created })
		w.expectMoving(n, "its earlier placement continues until the new one is ready")
		w.says(in.Node, n, func(o *api.Observed) { o.State, o.Reason, o.Detail = api.Failed, api.ReasonExited, "exit code 3" })
		if got := w.at(n); got.Reason != api.ReasonExited || !strings.HasPrefix(got.Detail, "moves to another node by request") || !strings.HasSuffix(got.Detail, "exit code 3") {
			t.Errorf("its new placement fails: got %s, want the reason of the node and the move", got.Standing())
		}
		w.says(in.Node, n, func(o *api.Observed) { o.State, o.Reason, o.Detail = api.Running, "", "" })
		w.expectMoving(n, "its earlier placement continues until the new one is ready")
		w.says(in.Node, n, func(o *api.Observed) { o.Ready = true })
		w.pass(20 * time.Second)
		w.expectStill(n, in.Node)
		if _, kept := w.nodes[from].want[web.Instance(n)]; kept {
			t.Error("the old placement is kept although the new one runs")
		}
		if got := w.at(1 - n).Node; got != other {
			t.Errorf("the other instance is on %s, want %s", got, other)
		}
		if err := w.moves(n, from); err != nil {
			t.Errorf("move back: %v", err)
		}
		w.checkBooks()
	}
}

// expectMoving checks that an instance says that it moves by request, and in which phase.
func (w *world) expectMoving(n int, phase string) {
	w.t.Helper()
	in := w.at(n)
	if in.Reason != api.ReasonMoved || !strings.HasPrefix(in.Detail, "moves to another node by request") || !strings.Contains(in.Detail, phase) {
		w.t.Errorf("instance %d: got %q, want a requested move and %q", n, in.Standing(), phase)
	}
}

// expectStill checks that an instance runs on a node, and does not say that it moves.
func (w *world) expectStill(n int, at api.NodeID) {
	w.t.Helper()
	in := w.expect(n, api.Running, at)
	if in.Reason != "" || strings.Contains(in.Detail, "by request") {
		w.t.Errorf("instance %d: got %q after its move, want no move", n, in.Standing())
	}
}

// TestRequestedMoveOfAnExclusiveInstance also restarts the cluster while nothing of the instance runs.
func TestRequestedMoveOfAnExclusiveInstance(t *testing.T) {
	for _, to := range []api.NodeID{"n1", "n2", ""} {
		w := newWorld(t, 3)
		w.wants(assignment(0, 1, exclusive(1, 100)))
		w.beat()
		from := w.at(0).Node
		if to == from {
			to = "n0"
		}
		if err := w.moves(0, to); err != nil {
			t.Fatalf("move to %q: %v", to, err)
		}
		in := w.record(web.Instance(0))
		if in.Node != "" || in.Reserved == "" || in.Reserved == from || to != "" && in.Reserved != to {
			t.Fatalf("after the request: it is on %q with capacity reserved on %q, want it stopped first, and %q", in.Node, in.Reserved, to)
		}
		target := in.Reserved
		w.expectMoving(0, "waits until its earlier placement has ended")
		w.restart()
		w.expectMoving(0, "waits until its earlier placement has ended")
		w.pass(20 * time.Second)
		w.expectStill(0, target)
		if in := w.expect(0, api.Running, target); in.Node == from {
			t.Errorf("it is on %s again", from)
		}
		w.checkBooks()
		w.checkExclusive()
	}
}

func TestRequestedMovesAreRefused(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, spec(3, 100)), assignment(1, 1, spec(2, 100)))
	w.beat()
	from, full := w.at(0).Node, w.at(1).Node
	refused := func(what string, n int, to api.NodeID, kind error, texts ...string) {
		t.Helper()
		before := w.at(n)
		err := w.moves(n, to)
		if !errors.Is(err, kind) {
			t.Errorf("%s: got %v, want %v", what, err, kind)
			return
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%s: got %q, want it to name %s", what, err, text)
			}
		}
		if now := w.at(n); now.Epoch != before.Epoch || now.Node != before.Node || now.Reason != before.Reason {
			t.Errorf("%s: the instance was %+v, and is %+v", what, before, now)
		}
	}
	refused("a full node", 0, full, api.ErrConflict, "constraint vcpus", string(full))
	refused("no other node fits", 0, "", api.ErrConflict, "fits on no other node", "vcpus")
	refused("an unknown node", 0, "n9", api.ErrNotFound, "n9")
	if err := w.moves(7, ""); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("an unknown instance: got %v, want ErrNotFound", err)
	}
	if err := w.moves(0, from); err != nil {
		t.Errorf("to its own node: got %v, want no effect", err)
	}
	w.step(Cordon{full, true})
	refused("a cordoned node", 1, full, nil)
	w.step(Cordon{full, false})
	w.step(Cordon{from, true})
	refused("to a cordoned node", 1, from, api.ErrConflict, "constraint out")

	w.nodes[from].off = true
	w.pass(7 * time.Second)
	if n, _ := w.c.Node(from); n.Status == api.NodeReady {
		t.Fatalf("node %s is %s, want silent", from, n.Status)
	}
	job := spec(1, 100)
	job.OneShot = true
	w = newWorld(t, 2)
	w.wants(assignment(0, 1, job), assignment(1, 1, spec(100, 100)))
	w.beat()
	w.says(w.at(0).Node, 0, func(o *api.Observed) { o.State = api.Completed })
	w.beat()
	refused("one that has ended", 0, "", api.ErrConflict, "completed")
	refused("one without a place", 1, "", api.ErrConflict, "no node")
}

// TestRequestedMoveCopiesVolumes: to the named node and no other. If that fails, the instance goes on where it is.
func TestRequestedMoveCopiesVolumes(t *testing.T) {
	w, from := newMovingWorld(t, 3)
	old := w.at(0).Epoch
	var to, third api.NodeID
	for _, id := range []api.NodeID{"n0", "n1", "n2"} {
		if id != from {
			to, third = id, to
		}
	}
	if err := w.moves(0, to); err != nil {
		t.Fatal(err)
	}
	first := w.task(moves.Copying)
	if first.To != to {
		t.Fatalf("task: got %+v, want a copy to %s", first, to)
	}
	w.expectMoving(0, "its volumes are being copied")
	if err := w.moves(0, to); err != nil {
		t.Errorf("the same request again: got %v, want no effect", err)
	}
	if err := w.moves(0, third); !errors.Is(err, api.ErrConflict) {
		t.Errorf("to another node meanwhile: got %v, want ErrConflict", err)
	}
	w.step(Cordon{from, true})
	w.step(Cordon{from, false}) // this ends moves because of drains only
	w.task(moves.Copying)
	w.fault(first, 3)
	if in := w.at(0); in.Node != from || in.Epoch != old || !strings.HasPrefix(in.Detail, api.NotMoved+"the disk is full") {
		t.Errorf("after the copy has failed: got %+v, want it on %s with the reason", in, from)
	}
	w.pass(2 * time.Minute)
	w.expect(0, api.Running, from)
	if d := w.task(moves.Discarding); d.To != to {
		t.Errorf("task: got %+v, want to discard the copy on %s", d, to)
	}
	w.result(w.task(moves.Discarding), 0)

	if err := w.moves(0, to); err != nil {
		t.Fatal(err)
	}
	w.result(w.task(moves.Copying), 50<<20)
	w.restart()
	w.pass(8 * time.Second)
	w.expectMoving(0, "what has changed in its volumes")
	w.result(w.task(moves.Finishing), 3<<10)
	w.beat()
	w.expectStill(0, to)
	in := w.expect(0, api.Running, to)
	if !strings.Contains(in.Detail, "not available for") {
		t.Errorf("detail: got %q, want the time without the instance", in.Detail)
	}

	// The target fails during the copy: it stays, and is not moved to a third node.
	w.copies(to, volumeOf(0, 64, in.Epoch))
	w.result(w.task(moves.Discarding), 0)
	w.copies(from)
	if err := w.moves(0, third); err != nil {
		t.Fatal(err)
	}
	w.nodes[third].off = true
	w.pass(2 * time.Minute)
	if now := w.expect(0, api.Running, to); now.Epoch != in.Epoch {
		t.Errorf("after its target was lost it has epoch %s, want %s", now.Epoch, in.Epoch)
	}
	w.checkBooks()
}

// TestRequestedMoveLeavesNoVolumeBehind: without `move: volume` an instance is bound to its volume.
func TestRequestedMoveLeavesNoVolumeBehind(t *testing.T) {
	w := newWorld(t, 2)
	for id := range w.nodes {
		w.copies(id)
	}
	w.beat()
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	from := w.at(0).Node
	w.copies(from, volumeOf(0, 64, w.at(0).Epoch))
	w.beat()
	for _, to := range []api.NodeID{"", map[api.NodeID]api.NodeID{"n0": "n1", "n1": "n0"}[from]} {
		if err := w.moves(0, to); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "volume") {
			t.Errorf("move to %q: got %v, want ErrConflict that names the volume", to, err)
		}
	}
}

// TestRequestedMovesThatLoseTheirTargetSaySo: the instance goes on at its source, and the root learns that it was not moved. A
// source that is drained meanwhile is left all the same.
func TestRequestedMovesThatLoseTheirTargetSaySo(t *testing.T) {
	for _, phase := range []moves.Phase{moves.Copying, moves.Stopping, moves.Finishing} {
		t.Run(string(phase), func(t *testing.T) {
			w, from := newMovingWorld(t, 2)
			if err := w.moves(0, ""); err != nil {
				t.Fatal(err)
			}
			v := w.task(moves.Copying)
			if phase != moves.Copying {
				w.result(v, 0)
			}
			if phase == moves.Finishing {
				w.beat()
			}
			w.step(Cordon{Node: v.To, On: true})
			w.beat()
			w.expect(0, api.Running, from)
			if o := w.observed(web.Instance(0)); !strings.HasPrefix(o.Detail, api.NotMoved) {
				t.Errorf("detail for the root: got %q, want that it was not moved", o.Detail)
			}
		})
	}

	w, from := newMovingWorld(t, 3)
	if err := w.moves(0, ""); err != nil {
		t.Fatal(err)
	}
	v := w.task(moves.Copying)
	w.step(Drain{Node: from})
	w.step(Cordon{Node: v.To, On: true})
	to := api.NodeID("")
	for _, task := range w.c.MoveTasks() {
		if task.Phase == moves.Copying {
			to = task.To
		}
	}
	if to == "" || to == v.To || to == from {
		t.Errorf("tasks after the drain of the source and the loss of the target: got %+v, want a copy to the third node", w.c.MoveTasks())
	}
}

// TestAFurtherRequestedMoveForgetsWhyTheLastOneFailed: otherwise the same failure could not be told from the earlier one.
func TestAFurtherRequestedMoveForgetsWhyTheLastOneFailed(t *testing.T) {
	w, _ := newMovingWorld(t, 2)
	if err := w.moves(0, ""); err != nil {
		t.Fatal(err)
	}
	v := w.task(moves.Copying)
	w.fault(v, 3)
	w.result(w.task(moves.Discarding), 0)
	if err := w.moves(0, ""); err != nil {
		t.Fatal(err)
	}
	if o := w.observed(web.Instance(0)); !strings.Contains(o.Detail, "being copied") {
		t.Errorf("detail for the root: got %q, want that its volumes are being copied", o.Detail)
	}
}
