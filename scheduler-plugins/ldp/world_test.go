package ldp_test

import (
	"cmp"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/vivaldi/vivalditest"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Compares placements within 20 ms and 120 km of a user with the true round trips. The user is
// located by 8 probes, or by 4 more of the nearest nodes, which finds a place for many more
// users.
func TestBoundsHoldByTrueRoundTrips(t *testing.T) {
	t.Run("8 at random", func(t *testing.T) { boundsHold(t, 0, 0.2) })
	t.Run("8 at random, then the 4 nearest", func(t *testing.T) { boundsHold(t, 4, 0.4) })
}

func boundsHold(t *testing.T, again int, least float64) {
	const n, users = 500, 400
	capacity := api.Resources{MilliCPU: 4000, MemoryMB: 8192}
	placed, kept, reachable := 0, 0, 0
	for _, seed := range []uint64{1, 2, 3} {
		w := vivalditest.New(n, seed)
		coords := w.Converge(n, 16, 200)
		var table sched.Table
		for i := range coords {
			c := plugintest.Node(fmt.Sprint(i), capacity)
			c.Geo, c.Coord = &w.Geo[i], &coords[i]
			table.Put(c)
		}
		for range users {
			u := w.Add()
			user := w.Geo[u]
			var from []api.Coordinate
			var rtts []time.Duration
			for _, p := range w.Probes(8, n) {
				from, rtts = append(from, coords[p]), append(rtts, w.Measure(p, u))
			}
			at, _ := vivaldi.Locate(from, rtts)
			near := w.Probes(n, n)
			slices.SortFunc(near, func(a, b int) int {
				return cmp.Compare(vivaldi.Distance(at, coords[a]), vivaldi.Distance(at, coords[b]))
			})
			for _, p := range near[:again] {
				from, rtts = append(from, coords[p]), append(rtts, w.Measure(p, u))
			}
			at, _ = vivaldi.Locate(from, rtts)
			req := sched.Request{
				Virtualization: "container", Needs: api.Resources{MilliCPU: 1000, MemoryMB: 100},
				Zones:  []sched.Zone{{Circle: &user, Radius: 120}},
				Bounds: []sched.Bound{{To: "user", RTT: 20 * time.Millisecond, Points: []api.Position{{Coord: &at}}}},
			}
			for i := range n {
				if w.RTT(i, u) <= 20*time.Millisecond && w.Geo[i].Kilometres(user) <= 120 {
					reachable++
					break
				}
			}
			best, ok := table.Best(&req, ldp.Plugin{}, uint64(u))
			if !ok {
				continue
			}
			placed++
			var i int
			_, _ = fmt.Sscan(best.ID, &i)
			if w.RTT(i, u) <= 20*time.Millisecond && w.Geo[i].Kilometres(user) <= 120 {
				kept++
			}
		}
	}
	t.Logf("%d of %d users have a node near enough; %d were given one, %d (%.1f %%) truly", reachable, 3*users, placed, kept, 100*float64(kept)/float64(placed))
	if float64(placed) < least*float64(reachable) || float64(kept) < 0.95*float64(placed) {
		t.Errorf("%d placed, %d of them truly near enough", placed, kept)
	}
}
