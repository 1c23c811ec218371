package tiers

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	node "github.com/treeline-edge/treeline/node-engine/wiring"
)

// large returns an instance whose specification has 3 KiB and which needs little capacity.
func large(n int) wire.Assignment {
	a := web(n)
	a.Spec.Memory, a.Spec.VCPUs = 1, 0.001
	a.Spec.Environment = []string{fmt.Sprintf("NUMBER=%d", n), "TEXT=" + strings.Repeat("x", 3<<10)}
	return a
}

// The desired set of two thousand large instances on one node has six times the maximum size of a
// message, and their complete report exceeds it, too.
func manyOnOneNode(t *testing.T, root *fakeRoot, c *tier) {
	cfg := c.nodeConfig(t, "n1", c.nodeToken(api.TokenRequest{}))
	cfg.CPUs, cfg.Memory = 100, 1<<20
	run := func(ctx context.Context) error { return node.Run(ctx, cfg, quiet(t)) }
	l := begin(t, run)
	rt := cfg.Fake.(*fakeRuntime)
	c.until(t, "n1", api.NodeReady)
	var all []wire.Assignment
	for n := range 2000 {
		all = append(all, large(n))
	}
	began := time.Now()
	root.set(all...)
	eventually(t, "all run", func() bool { return len(rt.running()) == len(all) })
	t.Logf("%d instances in %s", len(all), time.Since(began))

	// A node that was disconnected gets changes although the broker could not retain them.
	l.stop()
	cfg.Token = ""
	all = append(all[500:], large(5000))
	root.set(all...)
	begin(t, run)
	eventually(t, "what changed meanwhile is so", func() bool {
		_, stops := rt.counts()
		return len(rt.running()) == len(all) && stops == 500
	})
	if creates, _ := rt.counts(); creates != 2001 {
		t.Errorf("%d creations, want 2001", creates)
	}
	root.until("all is reported", func(r wire.Report) bool {
		for _, o := range r.Observed {
			if o.Instance == large(5000).Instance && o.State == api.Running {
				return true
			}
		}
		return false
	})
}

func TestManyLargeInstancesOnOneNode(t *testing.T) {
	root := newRoot(t)
	manyOnOneNode(t, root, startCluster(t, root))
}

func TestManyLargeInstancesOnOneNodeOverMosquitto(t *testing.T) {
	root := newRoot(t)
	c, _ := startWithMosquitto(t, root)
	manyOnOneNode(t, root, c)
}
