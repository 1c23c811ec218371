package cluster

import (
	"fmt"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// linkedTo returns a link of 5 ms to a service with the given convergence time in seconds.
func linkedTo(to string, seconds float64) func(*wire.Assignment) {
	return func(a *wire.Assignment) {
		a.Spec.Connectivity = []api.Connectivity{{Target: to, Constraints: []api.LinkConstraint{{Type: api.LinkLatency, Threshold: 5, ConvergenceTime: seconds}}}}
	}
}

// crowded returns a world of four nodes, 10 ms apart. n0 has capacity for one instance of 3
// vCPUs only.
func crowded(t *testing.T) *world { return line(t, 4, nil) }

func wide(a wire.Assignment, more ...func(*wire.Assignment)) wire.Assignment {
	a.Spec.VCPUs = 3
	for _, change := range more {
		change(&a)
	}
	return a
}

// placedAfter returns the number of seconds until an instance is on a node.
func (w *world) placedAfter(id api.InstanceID, most int) int {
	for s := range most {
		if w.nodeOf(id) != "" {
			return s
		}
		w.pass(time.Second)
		w.beat()
	}
	w.t.Fatalf("%s was not placed within %d s: %+v", id, most, w.observed(id))
	return 0
}

// The link's convergence_time counts for both ends, in either order.
func TestALinksConvergenceTimeCountsForBothEnds(t *testing.T) {
	for _, seconds := range []int{1, 12} {
		t.Run(fmt.Sprintf("the other end searches for %d s", seconds), func(t *testing.T) {
			w := crowded(t)
			w.wants(wide(of(web, 0, 1, onNode("n0")), linkedTo("pre.prod", float64(seconds))))
			w.wants(wide(of(pre, 0, 2)))
			if s := w.placedAfter(pre.Instance(0), 20); s < seconds-1 || s > seconds+1 {
				t.Errorf("it was placed after %d s, want %d", s, seconds)
			}
		})
		t.Run(fmt.Sprintf("the end with the link searches for %d s", seconds), func(t *testing.T) {
			w := crowded(t)
			w.wants(wide(of(pre, 0, 1, onNode("n0"))))
			w.wants(wide(of(web, 0, 2), linkedTo("pre.prod", float64(seconds))))
			if s := w.placedAfter(web.Instance(0), 20); s < seconds-1 || s > seconds+1 {
				t.Errorf("it was placed after %d s, want %d", s, seconds)
			}
			if n := w.nodeOf(web.Instance(0)); n != "n1" {
				t.Errorf("the best place that keeps no bound is n1, 10 ms away, and it is on %s", n)
			}
			w.pass(15 * time.Second)
			w.beat()
			if w.violated(web.Instance(0)) == "" {
				t.Error("nobody says that its SLA is violated")
			}
		})
	}
}

// After the search, when capacity near the other end becomes free, the instance moves there.
func TestAnInstancePlacedFarMovesNearLater(t *testing.T) {
	w := crowded(t)
	w.wants(wide(of(pre, 0, 1, onNode("n0"))))
	w.wants(wide(of(far, 0, 2, onNode("n1"))))
	w.wants(wide(of(web, 0, 3), linkedTo("pre.prod", 2)))
	w.placedAfter(web.Instance(0), 10)
	w.join("n9", api.Resources{MilliCPU: 4000, MemoryMB: 4096})
	w.stands("n9", 1)
	for range 120 {
		w.pass(time.Second)
		w.beat()
	}
	if n := w.nodeOf(web.Instance(0)); n != "n9" || w.violated(web.Instance(0)) != "" {
		t.Errorf("with room 1 ms from the other end it is on %s, violated %q", n, w.violated(web.Instance(0)))
	}
}

// An instance that could be near in another cluster is handed back, so that the root offers it
// there.
func TestALinkToAnotherClusterIsHandedBack(t *testing.T) {
	w := crowded(t)
	a := wide(of(web, 0, 1), linkedTo("pre.prod", 1))
	a.Targets = []api.Target{{Service: pre, Positions: []api.Position{{Coord: at(200)}}}}
	w.wants(a)
	for range 5 {
		w.pass(time.Second)
		w.beat()
	}
	if v := w.observed(web.Instance(0)); !v.HandedBack {
		t.Errorf("it was not handed back: %+v", v)
	}
}
