package rom_test

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func TestSuite(t *testing.T) { plugintest.Run(t, rom.Plugin{}) }

func node(id string, capacity, free api.Resources, load int) sched.Candidate {
	c := plugintest.Node(id, capacity)
	c.Free, c.Slots[0].Free, c.Slots[0].Largest, c.Load = free, free, free, load
	return c
}

func TestRankings(t *testing.T) {
	small := api.Resources{MilliCPU: 1000, MemoryMB: 1024}
	large := api.Resources{MilliCPU: 8000, MemoryMB: 8192}
	tests := []struct {
		name  string
		needs api.Resources
		a, b  sched.Candidate // a must win
	}{
		{
			"the emptier of two alike",
			api.Resources{MilliCPU: 100, MemoryMB: 100},
			node("a", large, api.Resources{MilliCPU: 6000, MemoryMB: 6000}, 0),
			node("b", large, api.Resources{MilliCPU: 5000, MemoryMB: 5000}, 0),
		},
		{
			"the share after placement counts, not the amount before",
			api.Resources{MilliCPU: 900, MemoryMB: 900},
			node("a", large, api.Resources{MilliCPU: 6000, MemoryMB: 6000}, 0),
			node("b", small, small, 0),
		},
		{
			"balanced before lopsided",
			api.Resources{MilliCPU: 100, MemoryMB: 100},
			node("a", large, api.Resources{MilliCPU: 4000, MemoryMB: 4096}, 0),
			node("b", large, api.Resources{MilliCPU: 7900, MemoryMB: 200}, 0),
		},
		{
			"among the unreserved, the one with fewer instances",
			api.Resources{},
			node("a", large, large, 2),
			node("b", large, large, 3),
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			req := sched.Request{Needs: tt.needs, Virtualization: "container"}
			for seed := range uint64(8) {
				best, ok := sched.PlaceBest(&req, []sched.Candidate{tt.b, tt.a}, rom.Plugin{}, seed)
				if !ok || best.ID != tt.a.ID {
					t.Fatalf("chose %v", best)
				}
			}
		})
	}
}

// Information about a cluster loses value with age: of two equal clusters, the one with newer
// information wins.
func TestStaleClustersComeAfterFreshOnes(t *testing.T) {
	large := api.Resources{MilliCPU: 8000, MemoryMB: 8192}
	fresh, stale := node("fresh", large, large, 0), node("stale", large, large, 0)
	fresh.Level, stale.Level = sched.Clusters, sched.Clusters
	fresh.Free.MilliCPU -= 800
	stale.Age = 30 * time.Second
	req := sched.Request{Virtualization: "container"}
	if best, _ := sched.PlaceBest(&req, []sched.Candidate{stale, fresh}, rom.Plugin{}, 1); best.ID != "fresh" {
		t.Fatalf("chose %v", best)
	}
}

// A burst that is placed one by one, with each reservation counted at once, fills the nodes
// completely and not beyond.
func TestABurstSpreadsAndDoesNotOvercommit(t *testing.T) {
	each := api.Resources{MilliCPU: 100, MemoryMB: 128}
	var cs []sched.Candidate
	for _, id := range []string{"n1", "n2", "n3", "n4"} {
		cs = append(cs, plugintest.Node(id, api.Resources{MilliCPU: 4000, MemoryMB: 8192}))
	}
	req := sched.Request{Needs: each, Virtualization: "container"}
	placed := 0
	for i := range 200 {
		best, ok := sched.PlaceBest(&req, cs, rom.Plugin{}, sched.SeedOf(i))
		if !ok {
			continue
		}
		placed++
		for k := range cs {
			if c := &cs[k]; c.ID == best.ID {
				c.Free, c.Load = c.Free.Minus(each), c.Load+1
				c.Slots[0].Free, c.Slots[0].Largest = c.Free, c.Free
			}
		}
		low, high := cs[0].Load, cs[0].Load
		for _, c := range cs {
			low, high = min(low, c.Load), max(high, c.Load)
			if c.Free.MilliCPU < 0 || c.Free.MemoryMB < 0 {
				t.Fatalf("%s is booked over: %v", c.ID, c.Free)
			}
		}
		if high-low > 1 {
			t.Fatalf("after %d the fullest has %d and the emptiest %d", placed, high, low)
		}
	}
	if placed != 160 {
		t.Fatalf("placed %d of the 160 that there is room for", placed)
	}
}
