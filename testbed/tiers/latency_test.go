package tiers

import (
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The time from a change on the root's stream through both daemons until the report, with a fake
// runtime: the time that the tiers add to a start. It includes every save, three hops down and
// three up.
func TestNothingOnTheWayWaits(t *testing.T) {
	root := newRoot(t)
	c := startCluster(t, root)
	c.startNode(t, "n1")
	var all []wire.Assignment
	// A poll or pause would add its whole duration in every trial. The bound allows for a machine
	// that is busy with other tests.
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
	t.Errorf("the median time from desired to reported running is %s in the last of three trials, which exceeds the bound", median)
}
