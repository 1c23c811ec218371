package cluster

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/wire"
)

// withMovingDisk is withDisk for a service that moves with its volume.
func withMovingDisk(sizeMB int64) api.Microservice {
	m := withDisk(sizeMB)
	m.Move = api.MoveVolume
	return m
}

// copies makes a node report that it copies volumes, and those that it has.
func (w *world) copies(id api.NodeID, volumes ...api.NodeVolume) {
	r := w.nodes[id].whole()
	info := w.claims[id]
	info.Capacity.StorageMB, info.Volumes = 1000, volumes
	info.Features = []string{api.FeatureStorage, api.FeatureOfVolume(api.VolumeLocal), api.FeatureVolumeCopy}
	r.Info = &info
	w.step(r)
}

// newMovingWorld returns a world in which instance 0 runs with its volume.
func newMovingWorld(t *testing.T, nodes int) (w *world, from api.NodeID) {
	t.Helper()
	w = newWorld(t, nodes)
	for id := range w.nodes {
		w.copies(id)
	}
	w.beat()
	w.wants(assignment(0, 1, withMovingDisk(64)))
	w.beat()
	from = w.at(0).Node
	w.copies(from, volumeOf(0, 64, w.at(0).Epoch))
	w.beat()
	return w, from
}

// task returns the only task of the cluster, in a phase.
func (w *world) task(p moves.Phase) moves.Task {
	w.t.Helper()
	all := w.c.MoveTasks()
	if len(all) != 1 || all[0].Phase != p {
		w.t.Fatalf("tasks: got %+v, want one in phase %s; the instance is %+v", all, p, w.at(0))
	}
	return all[0]
}

func (w *world) result(t moves.Task, bytes int64) {
	w.step(VolumesCopied{moves.Result{Task: t, Bytes: bytes}})
}

func (w *world) fault(t moves.Task, failures int) {
	w.step(VolumesCopied{moves.Result{Task: t, Fault: "the disk is full", Failures: failures}})
}

// TestDrainMovesVolumes follows a move, with a restart of the cluster after each step.
func TestDrainMovesVolumes(t *testing.T) {
	w, from := newMovingWorld(t, 2)
	old := w.at(0).Epoch
	next := func() {
		w.restart()
		w.pass(8 * time.Second)
	}
	w.step(Drain{Node: from})
	next()
	first := w.task(moves.Copying)
	to := first.To
	if first.From != from || to == from || first.Epoch != old || len(first.Spec.LocalVolumes()) != 1 {
		t.Fatalf("task: got %+v, want a copy of the volume from %s", first, from)
	}
	w.expect(0, api.Running, from)
	if got := w.node(to).Reserved.StorageMB; got != 64 {
		t.Errorf("disk reserved at the target: got %d MiB, want 64", got)
	}
	if r := w.node(from).Remaining; len(r) != 1 || r[0].Stuck || !strings.Contains(r[0].Why, "being copied to another node") || !strings.Contains(r[0].Why, string(to)) {
		t.Errorf("remaining: got %+v, want that its volumes are being copied to %s", r, to)
	}
	if o := w.observed(web.Instance(0)); !strings.Contains(o.Detail, "being copied") || strings.Contains(o.Detail, string(to)) {
		t.Errorf("detail for the root: got %q, want that its volumes are being copied, without a node's name", o.Detail)
	}

	w.result(first, 50<<20)
	if in := w.at(0); in.Node != "" || len(w.c.MoveTasks()) != 0 {
		t.Fatalf("after the first pass it is on %q with the tasks %v, want it stopped first", in.Node, w.c.MoveTasks())
	}
	w.result(first, 1) // repeated
	next()
	last := w.task(moves.Finishing)
	if len(w.nodes[from].has) != 0 {
		t.Error("the last pass begins while the source runs the instance")
	}
	next()
	w.copies(to, volumeOf(0, 64, old)) // the node reports it before the cluster has the result
	w.beat()
	if in := w.at(0); in.Node != "" {
		t.Fatalf("it is on %s before the last pass is complete", in.Node)
	}
	w.now = w.now.Add(time.Second)
	w.result(last, 3<<10)
	next()
	w.result(last, 1)
	in := w.expect(0, api.Running, to)
	if in.Epoch <= old || !strings.Contains(in.Detail, "not available for") || !strings.Contains(in.Detail, "50 MiB were copied while it ran, and 3 KiB after its stop") {
		t.Errorf("it has epoch %s and detail %q, want a later one and the figures of the move", in.Epoch, in.Detail)
	}
	w.copies(to, volumeOf(0, 64, in.Epoch))
	discard := w.task(moves.Discarding)
	if discard.To != from || discard.Epoch != old {
		t.Errorf("task: got %+v, want to discard the copy on %s", discard, from)
	}
	next()
	w.result(w.task(moves.Discarding), 0)
	w.copies(from)
	next()
	if all := w.c.MoveTasks(); len(all) != 0 {
		t.Errorf("tasks after the move: %+v", all)
	}
	w.expect(0, api.Running, to)
	for id, want := range map[api.NodeID]int64{from: 0, to: 64} {
		if got := w.node(id).Allocated.StorageMB; got != want || w.node(id).Reserved.StorageMB != 0 {
			t.Errorf("disk of %s: got %d MiB allocated and %d reserved, want %d and 0", id, got, w.node(id).Reserved.StorageMB, want)
		}
	}
}

// TestTheSourceIsKeptUntilTheTargetIsReady also has the node of the new placement fail.
func TestTheSourceIsKeptUntilTheTargetIsReady(t *testing.T) {
	w, from := newMovingWorld(t, 3)
	w.step(Drain{Node: from})
	first := w.task(moves.Copying)
	w.nodes[first.To].reason = api.ReasonNotReady
	w.nodes[first.To].slow = true
	w.result(first, 0)
	w.beat()
	w.result(w.task(moves.Finishing), 0)
	w.pass(time.Minute)
	if all := w.c.MoveTasks(); len(all) != 0 {
		t.Fatalf("tasks before the target is ready: %+v", all)
	}
	w.nodes[first.To].off = true
	w.pass(time.Minute)
	if in := w.at(0); in.State == api.Running || in.Node != first.To {
		t.Errorf("it is %s on %q, want it to wait for %s, which may have written to its volumes", in.State, in.Node, first.To)
	}
	w.nodes[first.To].off = false
	w.nodes[first.To].reason, w.nodes[first.To].slow = api.ReasonNone, false
	w.nodes[first.To].has = map[api.InstanceID]api.Observed{}
	w.pass(20 * time.Second)
	w.expect(0, api.Running, first.To)
	w.task(moves.Discarding)
}

// TestGivenUpMovesGoOnAtTheSource: in each phase, the target or the move is lost.
func TestGivenUpMovesGoOnAtTheSource(t *testing.T) {
	for _, phase := range []moves.Phase{moves.Copying, moves.Stopping, moves.Finishing} {
		for name, lose := range map[string]func(*world, moves.Task){
			"the target is silent": func(w *world, v moves.Task) { w.nodes[v.To].off = true; w.pass(time.Minute) },
			"the target is removed": func(w *world, v moves.Task) {
				w.nodes[v.To].off = true
				w.pass(time.Minute)
				if err := w.step(RemoveNode{v.To}).Err; err != nil {
					w.t.Fatal(err)
				}
			},
			"the target is cordoned": func(w *world, v moves.Task) { w.step(Cordon{Node: v.To, On: true}) },
			"the cluster has crashed": func(w *world, v moves.Task) {
				w.restart()
				w.step(Cordon{Node: v.To, On: true})
				w.pass(10 * time.Second)
			},
		} {
			t.Run(fmt.Sprint(phase, ", ", name), func(t *testing.T) {
				w, from := newMovingWorld(t, 2)
				w.step(Drain{Node: from})
				v := w.task(moves.Copying)
				switch phase {
				case moves.Stopping:
					w.result(v, 0)
				case moves.Finishing:
					w.result(v, 0)
					w.beat()
					w.task(moves.Finishing)
				}
				lose(w, v)
				w.beat()
				w.expect(0, api.Running, from)
				for _, task := range w.c.MoveTasks() {
					if task.Phase != moves.Discarding || task.To == from {
						t.Errorf("task: got %+v, want none but to discard the copy at the target", task)
					}
				}
				if rec := w.record(web.Instance(0)); rec.Move != nil || rec.Reserved != "" {
					t.Errorf("record: got %+v, want no move", rec)
				}
			})
		}
	}
}

// TestALostSourceKeepsTheInstance: it waits for the node, as without a move.
func TestALostSourceKeepsTheInstance(t *testing.T) {
	for _, phase := range []moves.Phase{moves.Copying, moves.Stopping, moves.Finishing} {
		t.Run(string(phase), func(t *testing.T) {
			w, from := newMovingWorld(t, 3)
			w.step(Drain{Node: from})
			v := w.task(moves.Copying)
			if phase != moves.Copying {
				w.result(v, 0)
			}
			if phase == moves.Finishing {
				w.beat()
			}
			w.nodes[from].off = true
			w.pass(time.Minute)
			if in := w.at(0); in.State == api.Running {
				t.Fatalf("it runs on %s without its volumes", in.Node)
			}
			w.nodes[from].off = false
			w.pass(20 * time.Second)
			for range 3 {
				for _, task := range w.c.MoveTasks() {
					w.result(task, 0)
				}
				w.beat()
			}
			if in := w.at(0); in.State != api.Running || in.Node == from {
				t.Errorf("it is %s on %q, want it to have moved when the node is back", in.State, in.Node)
			}
		})
	}
}

func TestFailedCopiesTryAnotherNode(t *testing.T) {
	w, from := newMovingWorld(t, 3)
	w.step(Drain{Node: from})
	v := w.task(moves.Copying)
	w.fault(v, 1)
	if r := w.node(from).Remaining; !strings.Contains(r[0].Why, "the disk is full") {
		t.Errorf("remaining: got %+v, want why the copy failed", r)
	}
	w.fault(v, 3)
	var other moves.Task
	for _, task := range w.c.MoveTasks() {
		if task.Phase == moves.Copying {
			other = task
		} else if task.To != v.To {
			t.Errorf("task: got %+v, want to discard the copy on %s", task, v.To)
		}
	}
	if other.To == v.To || other.To == from || other.To == "" {
		t.Fatalf("task: got %+v, want a copy to the third node", other)
	}
	w.fault(other, 3) // there is no fourth one: it goes on
	w.result(other, 0)
	w.beat()
	var last moves.Task
	for _, task := range w.c.MoveTasks() {
		if task.Phase == moves.Finishing {
			last = task
		}
	}
	w.fault(last, 5)
	w.beat()
	w.expect(0, api.Running, from)
	w.pass(2 * time.Minute)
	if rec := w.record(web.Instance(0)); rec.Move == nil || rec.Move.Phase != moves.Copying || rec.Epoch <= last.Epoch {
		t.Errorf("record: got %+v, want another move from the new placement", rec)
	}
}

// TestWithoutMoveItWaitsForItsNode also checks that nodes of an earlier release are no targets.
func TestWithoutMoveItWaitsForItsNode(t *testing.T) {
	w := newDiskWorld(t, 2)
	w.wants(assignment(0, 1, withDisk(64)))
	w.beat()
	home := w.at(0).Node
	w.hasVolumes(home, volumeOf(0, 64, w.at(0).Epoch))
	w.step(Drain{Node: home})
	w.beat()
	w.expect(0, api.Running, home)
	if all := w.c.MoveTasks(); len(all) != 0 {
		t.Errorf("tasks of a service that does not move: %+v", all)
	}
	w.wants(assignment(1, 2, withMovingDisk(64)))
	w.beat()
	why, _ := w.c.Why(web.Instance(1))
	if text := strings.Join(texts(why), "; "); !strings.Contains(text, api.FeatureText(api.FeatureMoveVolume)) {
		t.Errorf("why on nodes that do not copy volumes: got %q", text)
	}
}

// TestInventedResultsMoveNothing: results about moves that the cluster has not begun.
func TestInventedResultsMoveNothing(t *testing.T) {
	w, from := newMovingWorld(t, 2)
	other := api.NodeID("n0")
	if other == from {
		other = "n1"
	}
	for _, p := range []moves.Phase{moves.Copying, moves.Stopping, moves.Finishing, moves.Starting, moves.Discarding, ""} {
		w.result(moves.Task{Instance: web.Instance(0), Epoch: w.at(0).Epoch, Phase: p, From: from, To: other}, 1)
		w.result(moves.Task{Instance: web.Instance(9), Phase: p}, 1)
	}
	// A node that has a copy which the cluster did not order does not attract the instance.
	w.copies(other, volumeOf(0, 64, w.at(0).Epoch+100))
	w.beat()
	w.expect(0, api.Running, from)
	w.nodes[from].off = true
	w.pass(time.Minute)
	if in := w.at(0); in.State == api.Running || in.Node == other {
		t.Errorf("it is %s on %q, want it to wait for %s", in.State, in.Node, from)
	}
}

// TestUpdateWhileItMoves: a new version begins at the source, and moves from there.
func TestUpdateWhileItMoves(t *testing.T) {
	w, from := newMovingWorld(t, 2)
	w.step(Drain{Node: from})
	v := w.task(moves.Copying)
	w.result(v, 0)
	w.beat()
	a := assignment(0, 2, withMovingDisk(64))
	a.SpecRev = 2
	w.wants(a)
	w.beat()
	w.expect(0, api.Running, from)
	var again moves.Task
	for _, task := range w.c.MoveTasks() {
		if task.Phase == moves.Copying {
			again = task
		}
	}
	if again.Epoch <= v.Epoch {
		t.Errorf("tasks: got %+v, want a copy of the new placement's volumes", w.c.MoveTasks())
	}
}

// TestForcedDrainMovesStoppedInstances: it is stopped at once, and moves when a node fits.
func TestForcedDrainMovesStoppedInstances(t *testing.T) {
	w, from := newMovingWorld(t, 2)
	var other api.NodeID
	for id := range w.nodes {
		if id != from {
			other = id
		}
	}
	w.step(Cordon{Node: other, On: true})
	w.step(Drain{Node: from, Force: true})
	w.beat()
	if in := w.at(0); in.Node != "" {
		t.Fatalf("it is on %s after a forced drain", in.Node)
	}
	w.step(Cordon{Node: other, On: false})
	w.beat()
	w.result(w.task(moves.Finishing), 7)
	w.beat()
	w.expect(0, api.Running, other)
}

// TestTheTargetOfAMoveGetsTheAccountOfItsRegistry: the account is for the image that it fetches in advance. The
// service's secrets are not for it until it has the instance.
func TestTheTargetOfAMoveGetsTheAccountOfItsRegistry(t *testing.T) {
	w, from := newMovingWorld(t, 3)
	account, secret := ref("registry", 1), ref("db", 1)
	account.Registry = "registry.example"
	a := assignment(0, 1, withMovingDisk(64))
	a.Values = []wire.ValueRef{secret, account}
	w.wants(a)
	w.beat()
	w.step(Drain{Node: from})
	v := w.task(moves.Copying)
	if !slices.Equal(v.Values, []wire.ValueRef{account}) {
		t.Errorf("values of the task: got %v, want the account alone", v.Values)
	}
	gets := func(name string, id api.NodeID, want wire.ValueKey, yes bool) {
		t.Helper()
		if k, ok := w.c.ValueFor(id, want.Want()); ok != yes || ok && k.Name != want.Name {
			t.Errorf("%s: got %v %t, want %t", name, k, ok, yes)
		}
	}
	for id := range w.nodes {
		gets("account", id, key("registry", 1), id == from || id == v.To)
		gets("secret", id, key("db", 1), id == from)
		gets("account of another version", id, key("registry", 2), false)
	}
	w.result(v, 0)
	gets("account after the first pass", v.To, key("registry", 1), false)
	w.beat()
	last := w.task(moves.Finishing)
	if len(last.Values) > 0 {
		t.Errorf("values of the last pass: got %v, want none", last.Values)
	}
	w.copies(v.To, volumeOf(0, 64, last.Epoch))
	w.result(last, 0)
	w.pass(4 * time.Second)
	gets("secret where it runs", v.To, key("db", 1), true)
}
