package cluster

import (
	"fmt"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
)

// TestLargeClusterRestarts: with many nodes the timing has grown. The core must neither save nor
// apply it before the documents are restored.
func TestLargeClusterRestarts(t *testing.T) {
	w := newWorld(t, 0)
	for i := range membership.NodesAtBase + 1 {
		w.step(JoinNode{Info: nodeInfo(api.NodeID(fmt.Sprintf("n%d", i)), api.Resources{MilliCPU: 1000, MemoryMB: 1024})})
	}
	was := w.c.members.Timing()
	w.restart()
	if got := w.c.members.Timing(); got != was {
		t.Errorf("the timing is %v, was %v", got, was)
	}
}
