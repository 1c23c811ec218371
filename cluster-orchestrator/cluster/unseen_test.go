package cluster

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestANodeWithoutRuntimeProvesNothing drains a node with an exclusive instance. The node lost
// its store and cannot reach its runtime, so it reports nothing, but the container may still
// run.
func TestANodeWithoutRuntimeProvesNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.wants(assignment(0, 5, exclusive(1, 64)))
	w.beat()
	first := w.at(0).Node
	w.step(Drain{Node: first})
	n := w.nodes[first]
	clear(n.has)
	info := nodeInfo(first, api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	report := func(trouble string) {
		info.RuntimeError = trouble
		r := n.whole()
		r.Info = &info
		w.step(r)
		a := n.alive()
		a.Observed = a.Observed.Toggle(info.Digest())
		w.step(a)
	}
	report("containerd does not answer")
	if at := w.at(0); at.Node != "" {
		t.Fatalf("it is placed on %s, and may still run on %s", at.Node, first)
	}
	report("")
	if at := w.at(0); at.Node == "" || at.Node == first {
		t.Fatalf("the node has nothing of it, and it is on %q, want the other node", at.Node)
	}
}
