package vivaldi

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// TestCoordinatesLearnAGrid measures random pairs of nodes on a grid; the estimates must converge to the
// measurements.
func TestCoordinatesLearnAGrid(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const side = 5
	rtt := func(a, b int) time.Duration {
		d := math.Hypot(float64(a%side-b%side), float64(a/side-b/side))
		return time.Duration(d*10*float64(time.Millisecond)) + 2*time.Millisecond
	}
	nodes := make([]api.Coordinate, side*side)
	for i := range nodes {
		nodes[i] = New()
	}
	for n := range 20000 {
		a, b := rng.IntN(len(nodes)), rng.IntN(len(nodes))
		if a != b {
			nodes[a] = Update(nodes[a], nodes[b], rtt(a, b), uint64(n))
		}
	}
	sum, count := 0.0, 0.0
	for a := range nodes {
		for b := range a {
			sum += math.Abs(Distance(nodes[a], nodes[b]).Seconds()-rtt(a, b).Seconds()) / rtt(a, b).Seconds()
			count++
		}
	}
	if mean := sum / count; mean > 0.15 {
		t.Fatalf("the mean error is %.0f %%", mean*100)
	}
}

func TestTheSameSeedGivesTheSameCoordinate(t *testing.T) {
	a, b := Update(New(), New(), time.Second, 7), Update(New(), New(), time.Second, 7)
	if Distance(a, b) > time.Millisecond || !Moved(a, New(), 0.1) || Moved(a, b, 0.1) {
		t.Fatal(a, b)
	}
	if c := Update(a, New(), time.Minute, 1); Moved(c, a, 0.001) {
		t.Fatal("a round trip of a minute counts")
	}
}

func TestInvalidCoordinatesAreDetected(t *testing.T) {
	ok := New()
	if !Valid(&ok) {
		t.Fatal("a new one is not valid")
	}
	for _, spoil := range []func(*api.Coordinate){
		func(c *api.Coordinate) { c.Vec = c.Vec[:3] }, func(c *api.Coordinate) { c.Vec[2] = math.NaN() }, func(c *api.Coordinate) { c.Vec[2] = math.Inf(-1) },
		func(c *api.Coordinate) { c.Height = -1 }, func(c *api.Coordinate) { c.Error = math.Inf(1) }, func(c *api.Coordinate) { c.Adjustment = 1e9 },
	} {
		c := New()
		spoil(&c)
		if Valid(&c) {
			t.Errorf("%+v is valid", c)
		}
	}
	if Valid(nil) {
		t.Error("nil is valid")
	}
}
