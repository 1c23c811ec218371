package netbooks

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/step"
)

// Every node gets the list of peers to measure although messages are lost, and only once if none is
// lost, before and after restarts of either side.
func TestNodesLearnWhomToMeasure(t *testing.T) {
	for seed := range uint64(10) {
		w := newWorld(t, seed, 1, 6)
		w.lossy = true
		w.pass(2 * time.Minute)
		w.measuring("at first")
		w.nodes["c0-n2"].restart(true)
		w.pass(2 * time.Minute)
		w.measuring("after a restart of a netmanager")
		w.startCluster("c0")
		w.pass(3 * time.Minute)
		w.measuring("after a restart of the cluster")
		w.lossy = false
		w.pass(30 * time.Second)
		before := map[*node]int{}
		for _, n := range w.nodes {
			before[n] = n.told
		}
		w.pass(5 * time.Minute)
		for _, n := range w.nodes {
			if more := n.told - before[n]; more > 1 { // the list changes every ten minutes
				t.Errorf("%s received the list %d times, want once", n.id, more)
			}
		}
	}
}

func (w *world) measuring(when string) {
	w.t.Helper()
	for _, id := range step.Keys(w.nodes) {
		n := w.nodes[id]
		for _, p := range n.measure {
			if p.Node == id || !slices.Equal(p.Chain[0], []byte(p.Node)) {
				w.t.Errorf("%s: %s measures the wrong peer %+v", when, id, p)
			}
		}
		if len(n.measure) != 4 {
			w.t.Errorf("%s: %s measures %d peers", when, id, len(n.measure))
		}
	}
}
