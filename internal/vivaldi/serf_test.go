package vivaldi_test

import (
	"math"
	"testing"
	"time"

	"github.com/hashicorp/serf/coordinate"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/vivaldi/vivalditest"
)

func ofSerf(c *coordinate.Coordinate) api.Coordinate {
	return api.Coordinate{Vec: c.Vec, Error: c.Error, Adjustment: c.Adjustment, Height: c.Height}
}

// TestUpdateAgreesWithSerf compares Update with serf's client, step by step, over the round trips of a
// model. Both start apart, because serf draws a random direction for nodes at one place.
func TestUpdateAgreesWithSerf(t *testing.T) {
	const n, steps = 20, 5000
	w := vivalditest.New(n, 4)
	cfg := coordinate.DefaultConfig()
	cfg.AdjustmentWindowSize, cfg.LatencyFilterSize = 0, 1 // disables what package vivaldi omits
	clients := make([]*coordinate.Client, n)
	ours := make([]api.Coordinate, n)
	for i := range clients {
		c, err := coordinate.NewClient(cfg)
		if err != nil {
			t.Fatal(err)
		}
		// Start apart: at one place, both would draw a random direction.
		start := coordinate.NewCoordinate(cfg)
		start.Vec[i%vivaldi.Dimensions] = 0.01 * float64(i+1)
		if err := c.SetCoordinate(start); err != nil {
			t.Fatal(err)
		}
		clients[i], ours[i] = c, ofSerf(start.Clone())
	}
	worst := 0.0
	for s := range steps {
		a := s % n
		b := (a + 1 + s/n%(n-1)) % n
		rtt := w.Measure(a, b)
		theirs, err := clients[a].Update("peer", clients[b].GetCoordinate(), rtt)
		if err != nil {
			t.Fatal(err)
		}
		ours[a] = vivaldi.Update(ours[a], ours[b], rtt, uint64(s))
		for k, v := range theirs.Vec {
			worst = max(worst, math.Abs(v-ours[a].Vec[k]))
		}
		worst = max(worst, math.Abs(theirs.Height-ours[a].Height), math.Abs(theirs.Error-ours[a].Error))
		if d := theirs.DistanceTo(clients[b].GetCoordinate()) - vivaldi.Distance(ours[a], ours[b]); d.Abs() > time.Microsecond {
			t.Fatalf("after %d steps the estimates differ by %v", s+1, d)
		}
	}
	t.Logf("after %d steps no number differs by more than %g", steps, worst)
	if worst > 1e-9 {
		t.Errorf("they differ by %g", worst)
	}
}
