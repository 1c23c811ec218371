package sched_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// somewhere returns a position of which a part may be unknown.
func somewhere(rng *rand.Rand) (p api.Position) {
	if rng.IntN(10) > 0 {
		c := vivaldi.New()
		for d := range c.Vec {
			c.Vec[d] = rng.Float64() * []float64{0.2, 0.1, 0.01}[min(d, 2)]
		}
		c.Height, c.Adjustment, c.Error = rng.Float64()*0.01, (rng.Float64()-0.7)*0.02, rng.Float64()
		p.Coord = &c
	}
	if rng.IntN(10) > 0 {
		p.Geo = &api.Geo{Lat: rng.Float64()*180 - 90, Lon: rng.Float64()*360 - 180}
	}
	if rng.IntN(20) == 0 { // few nodes, so that places are on nodes of the table
		p.Node = api.NodeID(fmt.Sprint("n", rng.IntN(45)))
	}
	return p
}

func nodeOf(id string, at api.Position) sched.Candidate {
	r := api.Resources{MilliCPU: 4000, MemoryMB: 4096}
	return sched.Candidate{
		ID: id, Level: sched.Nodes, Capacity: r, Free: r, Geo: at.Geo, Coord: at.Coord,
		Slots: []sched.Slot{{Runtimes: []string{"container"}, Arch: "amd64", Free: r, Largest: r}},
	}
}

// TestPlacesAreAsGoodAsTheirPoints compares the results of a table for changing Places with
// those for their points.
func TestPlacesAreAsGoodAsTheirPoints(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 5))
		var table sched.Table
		for i := range 40 {
			table.Put(nodeOf(fmt.Sprint("n", i), somewhere(rng)))
		}
		sets := make([]sched.Places, 20) // more than a table caches
		names := []int{3, 30, 300, 1000}[seed%4]
		for round := range 60 {
			for range rng.IntN(names) {
				set, name := &sets[rng.IntN(len(sets))/7], fmt.Sprint("p", rng.IntN(names))
				if rng.IntN(3) == 0 || round%20 > 15 {
					set.Drop(name)
				} else {
					set.Put(name, somewhere(rng))
				}
			}
			if round == 1 {
				for k := range sets {
					sets[k].Put("one", somewhere(rng))
				}
			}
			switch id := fmt.Sprint("n", rng.IntN(45)); rng.IntN(3) {
			case 0:
				table.Drop(id)
			case 1:
				table.Put(nodeOf(id, somewhere(rng)))
			}
			a, b := &sets[rng.IntN(3)], &sets[rng.IntN(len(sets))]
			bound := sched.Bound{To: "pre", RTT: time.Duration(rng.IntN(100)+10) * time.Millisecond}
			if rng.IntN(2) == 0 {
				bound.RTT, bound.Km = 0, float64(rng.IntN(3000)+100)
			}
			of := bound
			bound.Places = []*sched.Places{a, b}
			if rng.IntN(2) == 0 {
				bound.Points = []api.Position{somewhere(rng)}
			}
			of.Points = slices.Concat(bound.Points, a.Points(), b.Points())
			req := sched.Request{Virtualization: "container", Bounds: []sched.Bound{bound}}
			plain := req
			plain.Bounds = []sched.Bound{of}
			got, ok := table.Best(&req, ldp.Plugin{}, seed)
			want, fits := table.Best(&plain, ldp.Plugin{}, seed)
			if got != want || ok != fits {
				t.Fatalf("seed %d, round %d: best is %v %v, by the points %v %v", seed, round, got, ok, want, fits)
			}
			for name, place := range map[string]func(*sched.Request) sched.Result{
				"in the table":   func(r *sched.Request) sched.Result { return table.Place(r, ldp.Plugin{}, seed) },
				"without memory": func(r *sched.Request) sched.Result { return sched.Place(r, table.All(), ldp.Plugin{}, seed) },
			} {
				if got, want := place(&req), place(&plain); !slices.Equal(got.Ranked, want.Ranked) || !slices.Equal(got.Rejected, want.Rejected) {
					t.Fatalf("seed %d, round %d, %s: %+v, by the points %+v", seed, round, name, got, want)
				}
			}
		}
	}
}

// BenchmarkPlaces decides near a service with an instance on each of 10,000 nodes. One of them
// moves before each decision.
func BenchmarkPlaces(b *testing.B) {
	const nodes = 10_000
	rng := rand.New(rand.NewPCG(1, 5))
	var table sched.Table
	var places sched.Places
	for i := range nodes {
		at := somewhere(rng)
		table.Put(nodeOf(fmt.Sprint("n", i), at))
		places.Put(fmt.Sprint("n", i), at)
	}
	req := sched.Request{Virtualization: "container", Bounds: []sched.Bound{{To: "pre", RTT: 20 * time.Millisecond, Places: []*sched.Places{&places}}}}
	began := time.Now()
	table.Best(&req, ldp.Plugin{}, 0)
	first := time.Since(began)
	seed := uint64(0)
	for b.Loop() {
		seed++
		id, at := fmt.Sprint("n", rng.IntN(nodes)), somewhere(rng)
		table.Put(nodeOf(id, at))
		places.Put(id, at)
		table.Best(&req, ldp.Plugin{}, seed)
	}
	b.ReportMetric(float64(first.Milliseconds()), "ms/first")
}
