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
	// A poll or pause would add its whole duration in every trial. A busy machine, or one with a slow disk, takes longer by
	// the time of some writes, and has further trials.
	const bound = 150 * time.Millisecond
	middle := func(all []time.Duration) time.Duration {
		slices.Sort(all)
		return all[len(all)/2]
	}
	var median, write time.Duration
	for range 5 {
		var took, writes []time.Duration
		for range 11 {
			began := time.Now()
			c.nodeToken(api.TokenRequest{})
			writes = append(writes, time.Since(began))
			next := web(len(all))
			next.Spec.Memory, next.Spec.VCPUs = 16, 0.05
			all = append(all, next)
			began = time.Now()
			root.set(all...)
			root.observed(next.Instance, api.Running)
			took = append(took, time.Since(began))
		}
		median, write = middle(took), middle(writes)
		t.Logf("median %s, worst %s; a request that writes takes %s", median, took[len(took)-1], write)
		if median <= bound+5*write {
			return
		}
	}
	t.Errorf("the median time from desired to reported running is %s in the last of five trials, want at most %s and five writes of %s", median, bound, write)
}
