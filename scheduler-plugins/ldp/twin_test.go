package ldp_test

import (
	"math"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Algorithm 2 line by line. W is the set of workers with the resources (1). For each service
// (2-6) and user (7-16), the workers within its distance and round trip remain. Of W (17), ldp
// chooses one with the widest margin.
func TestAlgorithm2(t *testing.T) {
	place := func(t *rapid.T, label string) (*api.Geo, *api.Coordinate) {
		g := api.Geo{Lat: rapid.Float64Range(45, 50).Draw(t, label+" lat"), Lon: rapid.Float64Range(8, 14).Draw(t, label+" lon")}
		c := vivaldi.New()
		for i := range 2 {
			c.Vec[i] = rapid.Float64Range(-0.02, 0.02).Draw(t, label+" part")
		}
		c.Error = rapid.Float64Range(0, 0.5).Draw(t, label+" error")
		return &g, &c
	}
	rapid.Check(t, func(t *rapid.T) {
		req := sched.Request{Virtualization: "container", Needs: api.Resources{MilliCPU: 1000, MemoryMB: 100}}
		services := rapid.IntRange(0, 2).Draw(t, "services")
		for range services {
			g, c := place(t, "service")
			p := []api.Position{{Geo: g, Coord: c}}
			req.Bounds = append(req.Bounds,
				sched.Bound{To: "s", Points: p, Km: rapid.Float64Range(50, 600).Draw(t, "geo_thr")},
				sched.Bound{To: "s", Points: p, RTT: time.Duration(rapid.IntRange(5, 60).Draw(t, "viv_thr")) * time.Millisecond})
		}
		if rapid.Bool().Draw(t, "user") {
			g, c := place(t, "user")
			req.Zones = []sched.Zone{{Circle: g, Radius: rapid.Float64Range(50, 600).Draw(t, "geo_thr")}}
			req.Bounds = append(req.Bounds, sched.Bound{To: "u", Points: []api.Position{{Coord: c}}, RTT: time.Duration(rapid.IntRange(5, 60).Draw(t, "lat_thr")) * time.Millisecond})
		}
		var workers []sched.Candidate
		for i := range rapid.IntRange(0, 8).Draw(t, "workers") {
			n := plugintest.Node(string(rune('a'+i)), api.Resources{MilliCPU: 4000, MemoryMB: 4096})
			n.Free.MilliCPU = rapid.Int64Range(0, 4000).Draw(t, "free")
			n.Geo, n.Coord = place(t, "worker")
			workers = append(workers, n)
		}
		margins := map[string]float64{}
		for _, n := range workers {
			if n.Free.MilliCPU < req.Needs.MilliCPU || n.Free.MemoryMB < req.Needs.MemoryMB {
				continue
			}
			in, margin := true, 1.0
			note := func(have, sure, most float64) {
				in = in && have <= most
				margin = min(margin, max((most-sure)/most, -1))
			}
			for _, b := range req.Bounds {
				if b.Km > 0 {
					km := n.Geo.Kilometres(*b.Points[0].Geo)
					note(km, km, b.Km)
					continue
				}
				at := b.Points[0].Coord
				rtt := float64(vivaldi.Distance(*n.Coord, *at))
				note(rtt, rtt*(1+max(n.Coord.Error, at.Error)), float64(b.RTT))
			}
			for _, z := range req.Zones {
				km := n.Geo.Kilometres(*z.Circle)
				note(km, km, z.Radius)
			}
			if in {
				margins[n.ID] = margin
			}
		}
		res := sched.Place(&req, workers, ldp.Plugin{}, 1)
		if len(res.Ranked) != len(margins) {
			t.Fatalf("ranked %v of %v", res.Ranked, margins)
		}
		for _, choice := range res.Ranked {
			if _, ok := margins[choice.ID]; !ok {
				t.Fatalf("%s is not in W, %v", choice.ID, margins)
			}
			// Free capacity makes up for at most a fifth of enough margin.
			if best, m := margins[res.Ranked[0].ID], margins[choice.ID]; len(req.Bounds) > 0 && m > best && math.Min(m, 0.5)-best > 0.1+1e-6 {
				t.Fatalf("a margin of %v was taken before one of %v", best, m)
			}
		}
	})
}
