package spread_test

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
	"github.com/treeline-edge/treeline/scheduler-plugins/spread"
)

func TestSuite(t *testing.T) { plugintest.Run(t, spread.Plugin{}) }

func TestPeersCountBeforeLoad(t *testing.T) {
	capacity := api.Resources{MilliCPU: 4000, MemoryMB: 4096}
	empty, full := plugintest.Node("empty", capacity), plugintest.Node("full", capacity)
	full.Free = api.Resources{MilliCPU: 50, MemoryMB: 50}
	cs := []sched.Candidate{empty, full}
	req := sched.Request{Virtualization: "container", Peers: map[string]int{"empty": 1}}
	if best, _ := sched.PlaceBest(&req, cs, spread.Plugin{}, 1); best.ID != "full" {
		t.Fatalf("chose %v beside a peer", best)
	}
	req.Peers["full"] = 1
	if best, _ := sched.PlaceBest(&req, cs, spread.Plugin{}, 1); best.ID != "empty" {
		t.Fatalf("chose %v among equal peers", best)
	}
}
