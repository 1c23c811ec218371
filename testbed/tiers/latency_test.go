package tiers

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The way of a change from the root's stream through both daemons and back in a
// report, with nothing to run: what our tiers add to a start. It counts every
// save on the way, three hops down and three up.
func TestNothingOnTheWayWaits(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	c.startNode(t, "n1")
	var all []wire.Assignment
	// A poll or a pause anywhere would show as its whole length, in every trial; the
	// bound leaves room for a machine that is busy with other tests.
	const bound = 150 * time.Millisecond
	var median time.Duration
	for range 3 {
		var took []time.Duration
		for range 11 {
			next := web(len(all))
			next.Spec.Memory, next.Spec.VCPUs = 16, 0.1
			all = append(all, next)
			began := time.Now()
			root.set(all...)
			root.observed(next.Instance, api.Running)
			took = append(took, time.Since(began))
		}
		slices.Sort(took)
		median = took[len(took)/2]
		t.Logf("median %s, worst %s", median, took[len(took)-1])
		if median <= bound {
			return
		}
	}
	t.Errorf("median of %s from desired to reported running, in the last of three trials", median)
}
