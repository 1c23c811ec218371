package sched_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// nodes returns n nodes of a few kinds with random load, in Europe and its latency space.
func nodes(n int) []sched.Candidate {
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	cs := make([]sched.Candidate, n)
	for i := range cs {
		c := plugintest.Node(fmt.Sprintf("node-%d", i), api.Resources{MilliCPU: 4000 << rng.IntN(3), MemoryMB: 8192 << rng.IntN(3)})
		c.Free.MilliCPU -= rng.Int64N(c.Free.MilliCPU)
		c.Free.MemoryMB -= rng.Int64N(c.Free.MemoryMB)
		c.Load = rng.IntN(20)
		c.Labels = map[string]string{"hostname": c.ID, "zone": fmt.Sprintf("z%d", i%8)}
		r := &c.Slots[0]
		r.Free, r.Largest, r.Network, r.Areas = c.Free, c.Free, true, []string{"de", fmt.Sprintf("town%d", i%16)}
		if i%4 == 0 {
			r.Arch = "arm64"
		}
		c.Geo, c.Coord = someplace(rng)
		cs[i] = c
	}
	return cs
}

func someplace(rng *rand.Rand) (*api.Geo, *api.Coordinate) {
	g := api.Geo{Lat: 40 + 15*rng.Float64(), Lon: -5 + 30*rng.Float64()}
	c := vivaldi.New()
	c.Vec[0], c.Vec[1], c.Height, c.Error = (g.Lat-40)*0.002, g.Lon*0.0015, 0.001+0.004*rng.Float64(), 0.1+0.2*rng.Float64()
	return &g, &c
}

func asking(rng *rand.Rand) sched.Request {
	g, c := someplace(rng)
	return sched.Request{
		ID: "acme/a.b.c.d#0", Virtualization: "container", Network: true, Needs: api.Resources{MilliCPU: 1000, MemoryMB: 100},
		Zones:  []sched.Zone{{Circle: g, Radius: 120}},
		Bounds: []sched.Bound{{To: "user", Points: []api.Position{{Coord: c}}, RTT: 20 * time.Millisecond}},
	}
}

func BenchmarkBest(b *testing.B) {
	rng := rand.New(rand.NewPCG(2, 3))
	for _, n := range []int{500, 10_000} {
		cs := nodes(n)
		var table sched.Table
		for _, c := range cs {
			table.Put(c)
		}
		plain := sched.Request{ID: "acme/a.b.c.d#0", Virtualization: "container", Network: true, Needs: api.Resources{MilliCPU: 1000, MemoryMB: 100}}
		zoned := plain
		zoned.Labels = []sched.Selector{{Key: "zone", Value: "z3"}}
		disk := plain
		disk.Needs.StorageMB = 1
		bench := func(name string, p sched.Plugin, req func() sched.Request) {
			b.Run(fmt.Sprintf("%s/%d", name, n), func(b *testing.B) {
				r := req()
				b.ReportAllocs()
				found, seed := 0, uint64(0)
				for b.Loop() {
					if seed++; seed%64 == 0 {
						r = req()
					}
					if _, ok := table.Best(&r, p, seed); ok {
						found++
					}
				}
				b.ReportMetric(float64(found)/float64(b.N), "found/op")
			})
		}
		bench("rom", rom.Plugin{}, func() sched.Request { return plain })
		bench("rom-label", rom.Plugin{}, func() sched.Request { return zoned })
		bench("rom-disk", rom.Plugin{}, func() sched.Request { return disk })
		bench("ldp", ldp.Plugin{}, func() sched.Request { return asking(rng) })
	}
}

// A thousand clusters with six kinds of nodes each, as at the root.
func BenchmarkBestOfClusters1000(b *testing.B) {
	rng := rand.New(rand.NewPCG(4, 5))
	var table sched.Table
	for i := range 1000 {
		members := nodes(6)
		c := sched.Candidate{ID: fmt.Sprintf("cluster-%d", i), Level: sched.Clusters, Nodes: 6}
		for _, n := range members {
			c.Capacity, c.Free, c.Slots = c.Capacity.Plus(n.Capacity), c.Free.Plus(n.Free), append(c.Slots, n.Slots...)
		}
		g, at := someplace(rng)
		c.Coord, c.Radius, c.Age = at, 5*time.Millisecond, time.Duration(rng.IntN(30))*time.Second
		c.Hull = sched.Hull([]api.Geo{*g, {Lat: g.Lat + 1, Lon: g.Lon}, {Lat: g.Lat, Lon: g.Lon + 1}}, 0.5)
		table.Put(c)
	}
	plain := sched.Request{ID: "acme/a.b.c.d#0", Virtualization: "container", Network: true, Needs: api.Resources{MilliCPU: 1000, MemoryMB: 100}}
	far := asking(rng)
	for name, req := range map[string]*sched.Request{"rom": &plain, "ldp": &far} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			seed := uint64(0)
			for b.Loop() {
				seed++
				table.Best(req, ldp.Plugin{}, seed)
			}
		})
	}
}

// A burst fills equal nodes one by one.
func BenchmarkBurst10000(b *testing.B) {
	req := sched.Request{ID: "acme/a.b.c.d#0", Virtualization: "container", Needs: api.Resources{MilliCPU: 100, MemoryMB: 64}}
	for b.Loop() {
		var table sched.Table
		for i := range 10_000 {
			table.Put(plugintest.Node(fmt.Sprintf("node-%d", i), api.Resources{MilliCPU: 4000, MemoryMB: 8192}))
		}
		for i := range 10_000 {
			best, _ := table.Best(&req, rom.Plugin{}, uint64(i))
			c := *table.Get(best.ID)
			c.Free, c.Load = c.Free.Minus(req.Needs), c.Load+1
			c.Slots[0].Free, c.Slots[0].Largest = c.Free, c.Free
			table.Put(c)
		}
	}
}
