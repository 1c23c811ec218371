package binpack_test

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/binpack"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func TestSuite(t *testing.T) { plugintest.Run(t, binpack.Plugin{}) }

func TestTheFullestNodeThatFitsIsChosen(t *testing.T) {
	capacity := api.Resources{MilliCPU: 4000, MemoryMB: 4096}
	with := func(id string, milli int64) sched.Candidate {
		c := plugintest.Node(id, capacity)
		c.Free.MilliCPU = milli
		return c
	}
	cs := []sched.Candidate{with("empty", 4000), with("tight", 500), with("over", 499)}
	req := sched.Request{Needs: api.Resources{MilliCPU: 500}, Virtualization: "container"}
	res := sched.Place(&req, cs, binpack.Plugin{}, 1)
	if len(res.Ranked) != 2 || res.Ranked[0].ID != "tight" {
		t.Fatalf("ranked %v", res.Ranked)
	}
}
