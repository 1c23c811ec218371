package tiers

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// The way of a change from the root's stream through both daemons and back in a
// report, with nothing to run: what our tiers add to a start. It counts every
// save on the way, three hops down and three up.
func TestNothingOnTheWayWaits(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	c.startNode(t, "n1")
	var all []api.Assignment
	var took []time.Duration
	for n := range 20 {
		all = append(all, web(n))
		all[n].Spec.Memory, all[n].Spec.VCPUs = 16, 0.1
		began := time.Now()
		root.set(all...)
		root.observed(all[n].Instance, api.Running)
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	t.Logf("median %s, worst %s", took[len(took)/2], took[len(took)-1])
	// A poll or a pause anywhere would show as its whole length; the bound leaves
	// room for a machine that is busy with other tests.
	if took[len(took)/2] > 150*time.Millisecond {
		t.Errorf("median of %s from desired to reported running", took[len(took)/2])
	}
}
