package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A broker may retain an outdated desired set of a node and deliver it when the node connects.
// Instances that were removed from the node meanwhile take capacity there while the node may
// still get such a set.

// kept returns the newest desired set that the last step sent to a node.
func (w *world) kept(id api.NodeID) (d wire.Desired) {
	w.t.Helper()
	for _, e := range w.last.Send {
		if m, ok := e.Msg.(wire.Desired); ok && e.To == id.Addr() {
			d = m
		}
	}
	if d.Gen == 0 {
		w.t.Fatalf("the last step sent no desired set to %s", id)
	}
	return d
}

// returnsLate: n0 misses that an instance came and went. It returns with the broker's outdated
// set, and another instance needs its capacity. between is called while the node is away.
func returnsLate(t *testing.T, between func(w *world)) {
	t.Helper()
	w := newWorld(t, 1)
	n := w.nodes["n0"]
	w.deaf = true
	w.wants(assignment(0, 1, spec(3, 100)))
	retained := w.kept("n0")
	w.drops(web.Instance(0))
	n.off = true
	w.pass(9 * time.Second)
	between(w)
	n.off = false
	w.speak("n0")
	w.wants(assignment(1, 1, spec(3, 100)))
	if in := w.at(1); in.Node != "" {
		t.Fatalf("it is on %s, which may still be handed a set whose instance takes 3 vCPU", in.Node)
	}
	n.take(retained)
	n.settle()
	w.speak("n0")
	w.deaf = false
	w.pass(10 * time.Second)
	w.expect(1, api.Running, "n0")
	w.checkBooks()
}

func TestAReturningNodeMustHoldTheSetThatTookAnInstanceAway(t *testing.T) {
	returnsLate(t, func(*world) {})
}

func TestAReturningNodeMustHoldThatSetAfterARestartOfItsCluster(t *testing.T) {
	returnsLate(t, (*world).restart)
}

// TestANodeThatRejoinsMustAcknowledgeASetWithoutCompletedInstances: the node lost its store and would
// run a completed instance of an outdated set again.
func TestANodeThatRejoinsMustAcknowledgeASetWithoutCompletedInstances(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes["n0"]
	job := spec(3, 100)
	job.OneShot = true
	w.wants(assignment(0, 1, job))
	retained := w.kept("n0")
	w.beat()
	done := n.has[web.Instance(0)]
	done.State = api.Completed
	n.has[web.Instance(0)] = done
	w.speak("n0")
	w.expect(0, api.Completed, "n0")
	w.deaf = true
	n.boot, n.gen, n.has = 1, 0, map[api.InstanceID]api.Observed{}
	n.want = map[api.InstanceID]wire.Assignment{}
	w.step(JoinNode{Info: nodeInfo("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096})})
	w.speak("n0")
	w.wants(assignment(1, 1, spec(3, 100)))
	if in := w.at(1); in.Node != "" {
		t.Fatalf("it is on %s, which may still be handed a set whose instance takes 3 vCPU", in.Node)
	}
	n.take(retained)
	n.settle()
	w.speak("n0")
	w.deaf = false
	w.pass(10 * time.Second)
	w.expect(1, api.Running, "n0")
	w.checkBooks()
}

// TestANodeWithALowerBootNumberIsToldTheHigherOne: a node lost its store, its clock went back, and a heartbeat of its earlier
// process arrives after it has joined again. Its own messages would be taken for old ones until its clock had caught up.
func TestANodeWithALowerBootNumberIsToldTheHigherOne(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes["n0"]
	n.boot = 9000
	w.speak("n0")
	late := n.alive()
	n.boot, n.seq, n.beat = 5000, 0, 0
	w.step(JoinNode{Info: nodeInfo("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096})})
	w.speak("n0")
	w.step(late)
	n.got = nil
	w.step(n.alive())
	if len(n.got) != 1 || n.got[0] != any(wire.Lease{Boot: 9000}) {
		t.Fatalf("it is told %+v, want the higher boot number and nothing else", n.got)
	}
	n.boot = 9001
	w.speak("n0")
	if got := w.node("n0"); got.Status != api.NodeReady {
		t.Errorf("with a higher number it is %+v, want it ready", got)
	}
}

// TestTheEndOfAnEarlierPlacementFreesNoCapacityOfALaterOne: the node got a new placement of the
// instance, and its end before the node reported it.
func TestTheEndOfAnEarlierPlacementFreesNoCapacityOfALaterOne(t *testing.T) {
	w := newWorld(t, 1)
	n := w.nodes["n0"]
	job := spec(3, 100)
	job.OneShot = true
	w.wants(assignment(0, 1, job))
	w.beat()
	done := n.has[web.Instance(0)]
	done.State = api.Completed
	n.has[web.Instance(0)] = done
	w.speak("n0")
	w.expect(0, api.Completed, "n0")
	before := n.whole() // delayed until the other steps are done
	w.deaf = true
	again := assignment(0, 2, job)
	again.SpecRev = 2
	w.wants(again)
	n.take(w.kept("n0"))
	w.drops(web.Instance(0))
	w.step(before)
	w.wants(assignment(1, 1, spec(3, 100)))
	if in := w.at(1); in.Node != "" {
		t.Fatalf("it is on %s, which may still run what takes %s", in.Node, job.Needs())
	}
	w.deaf = false
	w.pass(10 * time.Second)
	w.expect(1, api.Running, "n0")
	w.checkBooks()
}
