package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// asked reports whether a node got a request for a heartbeat, and resets that.
func (n *twin) asked() bool {
	was := false
	for _, m := range n.got {
		if l, ok := m.(wire.Lease); ok && l.RequestAlive {
			was = true
		}
	}
	n.got = nil
	return was
}

// ready makes all nodes settle and report that they answer roll calls.
func (w *world) ready() {
	for _, n := range w.nodes {
		n.answers = true
	}
	w.beat()
}

// Before a node is declared dead, the others are asked for a heartbeat. Those that do not answer
// get none of its instances.
func TestNodesThatDoNotAnswerTheRollCallGetNoLostInstances(t *testing.T) {
	w := newWorld(t, 4)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	w.ready()
	lost := w.at(0).Node
	w.nodes[lost].off = true
	silentAt := w.now.Add(7 * time.Second)
	w.pass(6 * time.Second) // the others send heartbeats every two seconds, the last one now
	var there *twin
	for id, n := range w.nodes {
		if id == lost {
			continue
		}
		if n.asked(); there == nil {
			there = n
			continue
		}
		n.off = true // cut off right after its heartbeat, so nothing is overdue
	}
	for w.now.Before(silentAt.Add(-400 * time.Millisecond)) {
		w.now = w.now.Add(100 * time.Millisecond)
		w.step(Tick{})
	}
	if !there.asked() {
		t.Fatal("nobody was asked before the node was declared dead")
	}
	w.step(there.alive())
	for w.at(0).Node == lost && w.now.Before(silentAt.Add(time.Second)) {
		w.now = w.now.Add(100 * time.Millisecond)
		w.step(Tick{})
	}
	if got := w.at(0); got.Node != there.id {
		t.Errorf("it is placed on %s, want %s, which alone answered", got.Node, there.id)
	}
}

// A node of an earlier release does not answer roll calls and is not suspect because of that.
func TestNodesThatCannotAnswerAreNotAsked(t *testing.T) {
	w := newWorld(t, 3)
	w.wants(assignment(0, 1, spec(1, 100)))
	w.beat()
	lost := w.at(0).Node
	w.nodes[lost].off = true
	w.pass(9 * time.Second)
	for id, n := range w.nodes {
		if n.asked() {
			t.Errorf("%s was asked", id)
		}
	}
	if got := w.at(0); got.Node == lost || got.State != api.Running {
		t.Errorf("it is %s on %s", got.State, got.Node)
	}
}

// If the next node does not accept an instance of a silent node, a third node gets it, unless it
// is exclusive.
func TestPlacementThatIsNotAcceptedIsOfferedElsewhere(t *testing.T) {
	for name, m := range map[string]api.Microservice{"plain": spec(1, 100), "exclusive": exclusive(1, 100)} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 5)
			w.wants(assignment(0, 1, m))
			w.beat()
			first := w.at(0).Node
			w.nodes[first].off = true
			for w.at(0).Node == first {
				w.pass(100 * time.Millisecond)
				if w.at(0).Node == first && w.now.Sub(epoch)%(2*time.Second) == 0 {
					w.beat()
				}
			}
			second := w.at(0)
			if second.State != api.NodeScheduled {
				t.Fatalf("it is %s on %s", second.State, second.Node)
			}
			w.nodes[second.Node].off = true // it accepted nothing: the desired set was lost
			w.nodes[second.Node].gen = 0
			w.pass(time.Second)
			third := w.at(0)
			if m.Exclusive {
				if third.Node != second.Node || third.Epoch != second.Epoch {
					t.Errorf("it was offered to %s, while %s may have taken it", third.Node, second.Node)
				}
				return
			}
			if third.Node == second.Node || third.Epoch <= second.Epoch {
				t.Fatalf("it is %s on %s (%s), want another than %s", third.State, third.Node, third.Epoch, second.Node)
			}
			w.speak(third.Node)
			w.pass(time.Second)
			if now := w.at(0); now.Node != third.Node {
				t.Errorf("it was accepted by %s and moved to %s", third.Node, now.Node)
			}
		})
	}
}
