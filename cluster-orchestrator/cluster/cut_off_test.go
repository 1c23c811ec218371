package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
)

// backend returns the state of the backend of instance #n on a node.
func (w *world) backend(n int, on api.NodeID) api.BackendState {
	_, be := w.c.place.Backend(routes.Place{Node: on, Instance: web.Instance(n)})
	return be.State
}

// TestNodesThatReturnFirstStillReachTheOthers is about a broker that was away for longer than the dead time: the
// node that returns first learns routes to instances of nodes that have not returned yet.
func TestNodesThatReturnFirstStillReachTheOthers(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 1, spec(3, 100)), assignment(1, 1, spec(3, 100)))
	w.beat()
	first, second := w.at(0).Node, w.at(1).Node
	if first == second {
		t.Fatalf("both instances are on %s, want one on each node", first)
	}
	w.nodes[first].off, w.nodes[second].off = true, true
	w.pass(3 * defaultDead)
	for n, on := range []api.NodeID{first, second} {
		if got := w.backend(n, on); got != api.BackendDraining {
			t.Errorf("all nodes are silent: the backend on %s is %s, want draining", on, got)
		}
	}
	w.nodes[first].off = false
	w.pass(4 * time.Second)
	if got := w.backend(0, first); got != api.BackendUp {
		t.Errorf("the backend on the node that returned is %s, want up", got)
	}
	if got := w.backend(1, second); got != api.BackendDraining {
		t.Errorf("the backend on the node that has not returned is %s, want draining", got)
	}
	w.nodes[second].off = false
	w.pass(4 * time.Second)
	if got := w.backend(1, second); got != api.BackendUp {
		t.Errorf("both nodes are back: the backend is %s, want up", got)
	}

	w.nodes[second].off = true
	w.pass(3 * defaultDead)
	if got := w.backend(1, second); got != api.BackendStarting {
		t.Errorf("only its node is silent: the backend is %s, want starting", got)
	}
}
