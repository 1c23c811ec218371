package main

import (
	"fmt"
	"math"
	"math/rand/v2"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
	"github.com/treeline-edge/treeline/testbed/report/chart"
)

// Figure 10 of the Oakestra paper: the duration of one decision of ROM and of LDP, with up to
// 500 workers and more. The request is that of the paper: 1 vCPU, 100 MB, a user at 20 ms and
// 120 km.

// most is the limit of a decision in µs, by plugin and number of candidates.
var most = map[string]map[int]float64{
	"rom": {500: 20, 10_000: 300},
	"ldp": {500: 100, 10_000: 2000},
}

func fig10(r *run) error {
	var panels []chart.Panel
	for _, alg := range []sched.Plugin{rom.Plugin{}, ldp.Plugin{}} {
		panel := chart.Panel{Title: "One decision of " + alg.Name() + " among workers", Unit: "µs"}
		for _, size := range []int{50, 100, 200, 300, 400, 500, 10_000} {
			rec, err := decisions(r, alg, size)
			if err != nil {
				return err
			}
			r.emit(rec)
			panel.Bars = append(panel.Bars, barOf(rec, fmt.Sprintf("%d workers", size)))
		}
		panel.Own = true
		panels = append(panels, panel)
	}
	rec, err := clusterDecisions(r, 1000)
	if err != nil {
		return err
	}
	r.emit(rec)
	panels = append(panels, chart.Panel{Title: "One decision of the root's", Unit: "µs", Bars: []chart.Bar{barOf(rec, "1,000 clusters")}})
	return r.draw("Scheduling, as in figure 10 of the Oakestra paper", panels)
}

// decisions measures one plugin on one core: batches of decisions with different seeds.
func decisions(r *run, alg sched.Plugin, size int) (Record, error) {
	w := earth(size)
	req := sched.Request{
		ID: "acme/fig10.bench.svc.bench#0", Virtualization: "container",
		Needs: api.Resources{MilliCPU: 1000, MemoryMB: 100},
	}
	if alg.Name() == "ldp" {
		user := w.users[0]
		req.Zones = []sched.Zone{{Circle: user.Geo, Radius: 120}}
		req.Bounds = []sched.Bound{{To: "the user", Points: []api.Position{{Coord: user.Coord}}, RTT: 20 * time.Millisecond}}
	}
	batch := max(10_000/size, 5)
	var took series
	for i := range r.n {
		wat := watch("")
		began := time.Now()
		for j := range batch {
			if _, ok := w.table.Best(&req, alg, uint64(i*batch+j)); !ok {
				return Record{}, fmt.Errorf("%s: none of %d workers fits", alg.Name(), size)
			}
		}
		took.add(float64(time.Since(began).Nanoseconds())/1000/float64(batch), wat.disturbed())
	}
	rec := took.record(fmt.Sprintf("fig10.%s-%d", alg.Name(), size), "µs")
	if m := most[alg.Name()][size]; m > 0 {
		rec = rec.atMost(m)
	}
	return rec, nil
}

// world has nodes and users with positions on the earth and in the latency space.
type world struct {
	table sched.Table
	users []api.Position
}

// earth returns size workers in Europe and a user near the first. Round trips grow with the
// distance from 10 to 250 ms, the range of the paper.
func earth(size int) *world {
	rng := rand.New(rand.NewPCG(10, uint64(size)))
	w := new(world)
	for i := range size {
		at := api.Geo{Lat: 36 + 24*rng.Float64(), Lon: -9 + 36*rng.Float64()}
		free := api.Resources{MilliCPU: int64(1000 + 100*(i%40)), MemoryMB: 4096}
		coord := space(at, 0.005*rng.Float64())
		w.table.Put(sched.Candidate{
			ID: fmt.Sprintf("worker-%d", i), Level: sched.Nodes, Free: free,
			Capacity: api.Resources{MilliCPU: 8000, MemoryMB: 8192},
			Slots:    []sched.Slot{{Runtimes: []string{"container"}, Arch: "amd64", Network: true, Free: free, Largest: free}},
			Geo:      &at, Coord: &coord,
		})
		if i == 0 {
			near, user := api.Geo{Lat: at.Lat + 0.1, Lon: at.Lon}, api.Coordinate{}
			user = space(near, 0.001)
			w.users = append(w.users, api.Position{Geo: &near, Coord: &user})
		}
	}
	return w
}

// space returns the coordinate of a location in seconds: a point on a sphere, so that
// distances are Euclidean, and the delay of its access link as the height.
func space(at api.Geo, height float64) api.Coordinate {
	const rad, radius = math.Pi / 180, 0.4 // 250 ms over some 4,000 km
	return api.Coordinate{
		Vec: []float64{
			radius * math.Cos(at.Lat*rad) * math.Cos(at.Lon*rad), radius * math.Cos(at.Lat*rad) * math.Sin(at.Lon*rad),
			radius * math.Sin(at.Lat*rad), 0, 0, 0, 0, 0,
		},
		Height: height, Error: 0.1,
	}
}

// clusterDecisions measures the root's choice among clusters of some dozen nodes.
func clusterDecisions(r *run, clusters int) (Record, error) {
	rng := rand.New(rand.NewPCG(10, 1))
	var t sched.Table
	for i := range clusters {
		at := api.Geo{Lat: 36 + 24*rng.Float64(), Lon: -9 + 36*rng.Float64()}
		coord := space(at, 0.002)
		var rooms []sched.Slot
		for _, arch := range []string{"amd64", "arm64"} {
			free := api.Resources{MilliCPU: int64(10_000 + 1000*(i%20)), MemoryMB: 40_960}
			rooms = append(rooms, sched.Slot{
				Runtimes: []string{"container"}, Arch: arch, Network: true, Free: free,
				Largest: api.Resources{MilliCPU: 4000, MemoryMB: 4096},
			})
		}
		free := api.Resources{MilliCPU: int64(20_000 + 2000*(i%20)), MemoryMB: 81_920}
		t.Put(sched.Candidate{
			ID: fmt.Sprintf("cluster-%d", i), Level: sched.Clusters, Slots: rooms, Free: free, Nodes: 24,
			Capacity: api.Resources{MilliCPU: 96_000, MemoryMB: 98_304}, Coord: &coord, Radius: 5 * time.Millisecond,
			Hull: []api.Geo{at, {Lat: at.Lat + 0.5, Lon: at.Lon}, {Lat: at.Lat, Lon: at.Lon + 0.5}},
		})
	}
	req := sched.Request{ID: "acme/fig10.bench.svc.bench#0", Virtualization: "container", Needs: api.Resources{MilliCPU: 1000, MemoryMB: 100}}
	var took series
	const batch = 20
	for i := range r.n {
		wat := watch("")
		began := time.Now()
		for j := range batch {
			if _, ok := t.Best(&req, rom.Plugin{}, uint64(i*batch+j)); !ok {
				return Record{}, fmt.Errorf("none of %d clusters fits", clusters)
			}
		}
		took.add(float64(time.Since(began).Nanoseconds())/1000/batch, wat.disturbed())
	}
	return took.record(fmt.Sprintf("fig10.root-%d", clusters), "µs"), nil
}
