package cluster

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestImpossibleReportsOfANodeAreRefused: a node changes its Info to impossible values.
// Its earlier values still count, and a counter and one notice per minute report it.
func TestImpossibleReportsOfANodeAreRefused(t *testing.T) {
	w := newWorld(t, 2)
	before := w.c.Aggregate()
	info := w.claims["n0"]
	for name, lie := range map[string]func(*api.NodeInfo){
		"negative":   func(i *api.NodeInfo) { i.Capacity.MilliCPU = -5 },
		"2^40 MiB":   func(i *api.NodeInfo) { i.Capacity.MemoryMB = 1 << 40 },
		"10^12 vCPU": func(i *api.NodeInfo) { i.Capacity.MilliCPU = 1e15 },
		"place":      func(i *api.NodeInfo) { i.Labels = map[string]string{"zone": strings.Repeat("z", 1<<20)} },
		"ports":      func(i *api.NodeInfo) { i.Ports = &api.NodePorts{Publish: make([]api.PortRange, 5000)} },
	} {
		bad := info
		lie(&bad)
		n := w.nodes["n0"]
		n.seq++
		w.step(NodeReport{wire.NodeReport{Node: "n0", Boot: n.boot, Seq: n.seq, Gen: n.gen, Whole: true, Info: &bad}})
		if got := w.c.Aggregate(); got.Capacity != before.Capacity || got.Nodes != before.Nodes {
			t.Errorf("%s: the cluster has %+v", name, got)
		}
		if err := w.c.Step(w.now, JoinNode{Info: bad}).Err; !errors.Is(err, api.ErrInvalid) {
			t.Errorf("%s joins: %v", name, err)
		}
	}
	if n := w.c.RefusedValues(); n != 5 {
		t.Errorf("%d values are counted, want 5", n)
	}
	owed := 0
	for _, o := range w.c.uplink.Notices() {
		if o.Reason == api.ReasonOutOfBounds && strings.HasPrefix(o.Text, "node n0: refused values: info.") {
			owed++
		}
	}
	if owed != 1 {
		t.Errorf("%d notices, want 1", owed)
	}
	w.now = w.now.Add(time.Millisecond)
	if err := w.c.Step(w.now, NodeAlive{Node: "n0", Alive: wire.Alive{Boot: 1, Seq: math.MaxUint64}}).Err; !errors.Is(err, api.ErrInvalid) {
		t.Errorf("a sign of life with a sequence number of 2^64-1: %v", err)
	}
}
