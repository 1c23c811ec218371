package clusterlink

import (
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestAHostileReportOfRootKeysIsBounded(t *testing.T) {
	k := wire.RootKeys{Key: 2, Oldest: 1}
	hostile := wire.RootKeysReport{Root: wire.RootKeys{Key: 1 << 60, Oldest: 1 << 60}, Behind: -7, Nodes: []api.NodeID{"n1", "\x1b[2J", "../n2", ""}}
	for range 1000 {
		hostile.Nodes = append(hostile.Nodes, "n3")
	}
	b, behind := standing("munich", hostile, k)
	if behind || b.Generation != 2 || b.Nodes != 0 || len(b.Names) > wire.MaxBehindNodes || slices.ContainsFunc(b.Names, func(n api.NodeID) bool { return !api.ValidMachineName(string(n)) }) {
		t.Errorf("got %+v, behind %v; want generation 2, no number of nodes, and at most %d valid names", b, behind, wire.MaxBehindNodes)
	}
	for _, r := range []wire.RootKeysReport{{}, {Root: wire.RootKeys{Key: 2}}, {Root: wire.RootKeys{Key: 1, Oldest: 1}}, {Root: k, Behind: 1}} {
		if _, behind := standing("munich", r, k); !behind {
			t.Errorf("the cluster with the report %+v is not behind %+v", r, k)
		}
	}
}
