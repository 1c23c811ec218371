package rom_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Algorithm 1 of the paper over idle nodes: of the workers with the requested resources, one
// with the most left. The scarcer of processor and memory counts three times, the other once.
func TestAlgorithm1(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		req, nodes := plugintest.Requests().Draw(t, "request"), plugintest.Candidates().Draw(t, "nodes")
		req.Needs.StorageMB, req.Needs.InMbit, req.Needs.OutMbit = 0, 0, 0
		most, found := 0.0, false
		left := map[string]float64{}
		for _, n := range nodes {
			n.Age = 0
			if !plugintest.Fits(&req, n) {
				continue
			}
			load := int64(n.Load + 1)
			cpu, memory := 0.0, 0.0
			if n.Capacity.MilliCPU > 0 {
				cpu = min(float64(n.Free.MilliCPU-req.Needs.MilliCPU-10*load)/float64(n.Capacity.MilliCPU), 1)
			}
			if n.Capacity.MemoryMB > 0 {
				memory = min(float64(n.Free.MemoryMB-req.Needs.MemoryMB-12*load)/float64(n.Capacity.MemoryMB), 1)
			}
			left[n.ID] = (3*min(cpu, memory) + max(cpu, memory)) / 4
			if !found || left[n.ID] > most {
				most, found = left[n.ID], true
			}
		}
		for i := range nodes {
			nodes[i].Age = 0
		}
		best, ok := sched.PlaceBest(&req, nodes, rom.Plugin{}, 1)
		if ok != found || ok && (left[best.ID] != most || best.Score != most) {
			t.Fatalf("chose %v %v, the most left is %v of %v", best, ok, most, left)
		}
	})
}
