package cluster

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Moves in another cluster count towards the limit per hour here.
func TestMovesInOtherClustersCountTowardsTheLimit(t *testing.T) {
	w := line(t, 6, nil)
	w.wants(of(pre, 0, 1, onNode("n3")))
	w.step(Cordon{"n3", true})
	a := of(web, 0, 2, near("pre.prod", 12))
	a.Moves = []time.Time{w.now.Add(-2 * time.Hour), w.now.Add(-30 * time.Minute), w.now.Add(-20 * time.Minute), w.now.Add(-10 * time.Minute)}
	w.wants(a)
	w.beat()
	epochs := map[api.Epoch]bool{}
	for range 12 {
		w.stands(w.at(0).Node, 200)
		for range 35 {
			w.pass(time.Second)
			w.beat()
			epochs[w.at(0).Epoch] = true
		}
		for i := range 6 {
			w.stands(api.NodeID("n"+string(rune('0'+i))), 10*float64(i))
		}
	}
	if n := len(epochs) - 1; n != 1 {
		t.Errorf("after three moves elsewhere it moved %d times", n)
	}
	in := w.record(web.Instance(0))
	if n := len(w.observed(in.Desired.Instance).Moves); n != 4 {
		t.Errorf("the root is told of %d moves", n)
	}
	for id, n := range w.nodes {
		if moves := n.want[in.Desired.Instance].Moves; moves != nil {
			t.Errorf("the assignment sent to node %s has moves %v, want none", id, moves)
		}
	}
	if in.Desired.Moves != nil {
		t.Error("its node is told")
	}
}
