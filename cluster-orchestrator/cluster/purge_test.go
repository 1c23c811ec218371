package cluster

import (
	"errors"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// ordered reports whether the newest desired set that was sent to the node has Purge set.
func (w *world) ordered(id api.NodeID) bool {
	all := w.told(w.nodes[id].got)
	return len(all) > 0 && all[len(all)-1].Purge
}

func TestPurgedNodeIsEmptiedAndRemovedWhenItHasLeft(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, spec(1, 256)))
	w.pass(5 * time.Second)
	w.expect(0, api.Running, "n0")
	w.step(PurgeNode{Node: "n0"}) // no other node has capacity
	w.pass(5 * time.Second)
	if got := w.at(0); got.Node != "" {
		t.Errorf("it is still on %s", got.Node)
	}
	if len(w.nodes["n0"].want) != 0 || !w.ordered("n0") {
		t.Errorf("the node is to have %v, ordered: %v", w.nodes["n0"].want, w.ordered("n0"))
	}
	w.restart()
	w.pass(5 * time.Second)
	n, ok := w.c.Node("n0")
	if !ok || !n.Purging || !w.ordered("n0") {
		t.Errorf("the order is lost by a restart: %+v", n)
	}
	w.step(NodePurging{Node: "n0", NodePurging: wire.NodePurging{Failed: "disk"}})
	if n, _ := w.c.Node("n0"); n.PurgeError != "disk" {
		t.Errorf("why it failed is not shown: %q", n.PurgeError)
	}
	for range 2 { // the message may be repeated
		if eff := w.step(NodeLeft{Node: "n0"}); eff.Err != nil {
			t.Fatal(eff.Err)
		}
	}
	if _, ok := w.c.Node("n0"); ok {
		t.Error("the node is still there")
	}
	if eff := w.step(NodePurging{Node: "n0"}); !errors.Is(eff.Err, api.ErrNotFound) {
		t.Errorf("a node that was removed asks: %v", eff.Err)
	}
}

func TestNodeThatJoinsAnewIsNotPurged(t *testing.T) {
	w := newWorld(t, 1)
	w.step(PurgeNode{Node: "n0"})
	w.step(NodeLeft{Node: "n0"})
	w.join("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	w.pass(5 * time.Second)
	if n, ok := w.c.Node("n0"); !ok || n.Purging || w.ordered("n0") {
		t.Errorf("the order of the earlier join holds for the new one: %+v", n)
	}
}

// A node that joins again with a new token before it has purged itself keeps its data. A join
// request that is repeated because its answer was lost changes nothing.
func TestJoinWithNewTokenEndsOrderToPurge(t *testing.T) {
	for _, c := range []struct {
		name  string
		token string
		ends  bool
	}{
		{"the token of the join before, again", "first", false},
		{"a new token", "second", true},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, 1)
			join := func(token string) {
				t.Helper()
				if eff := w.step(JoinNode{Info: nodeInfo("n0", api.Resources{MilliCPU: 4000, MemoryMB: 4096}), Token: token}); eff.Err != nil {
					t.Fatal(eff.Err)
				}
				w.speak("n0")
			}
			join("first")
			w.step(PurgeNode{Node: "n0"})
			w.restart() // the token of the last join is saved
			w.step(NodePurging{Node: "n0", NodePurging: wire.NodePurging{Failed: "disk"}})
			for range 2 {
				join(c.token)
			}
			w.pass(5 * time.Second)
			n, _ := w.c.Node("n0")
			if n.Purging == c.ends || w.ordered("n0") == c.ends || (n.PurgeError == "") != c.ends {
				t.Errorf("purging: %v (%q), in its desired set: %v, want the order ended: %v", n.Purging, n.PurgeError, w.ordered("n0"), c.ends)
			}
			if n.Status != api.NodeDraining {
				t.Errorf("the node is %s, want it drained until the operator uncordons it", n.Status)
			}
			w.restart()
			w.speak("n0")
			if n, _ := w.c.Node("n0"); n.Purging == c.ends {
				t.Errorf("after a restart, purging: %v, want the order ended: %v", n.Purging, c.ends)
			}
			w.step(PurgeNode{Node: "n0"})
			join(c.token) // a late repeated request
			if n, _ := w.c.Node("n0"); !n.Purging {
				t.Error("a repeated join request has ended an order that was given after that join")
			}
		})
	}
}

func TestSilentNodeIsPurgedWhenItIsBack(t *testing.T) {
	w := newWorld(t, 1)
	w.wants(assignment(0, 1, spec(1, 256)))
	w.pass(5 * time.Second)
	w.expect(0, api.Running, "n0")
	w.nodes["n0"].off = true
	w.pass(2 * time.Minute)
	w.step(PurgeNode{Node: "n0"})
	n, _ := w.c.Node("n0")
	if n.Status != api.NodeSilent || !n.Purging || len(n.Remaining) != 1 {
		t.Errorf("what may run on the silent node is not shown: %+v", n)
	}
	if all := w.c.Nodes(); len(all) != 1 || all[0].Remaining != nil {
		t.Errorf("a list of nodes explains what remains, which ranks all nodes for each instance: %+v", all)
	}
	w.nodes["n0"].off = false
	w.pass(30 * time.Second)
	if len(w.nodes["n0"].want) != 0 || !w.ordered("n0") {
		t.Errorf("the node that is back is to have %v, ordered: %v", w.nodes["n0"].want, w.ordered("n0"))
	}
}

func TestUncordonTakesPurgeBack(t *testing.T) {
	w := newWorld(t, 1)
	w.step(PurgeNode{Node: "n0"})
	w.step(Cordon{Node: "n0"})
	if n, _ := w.c.Node("n0"); n.Purging || w.ordered("n0") {
		t.Errorf("it is still to be purged: %+v", n)
	}
}
