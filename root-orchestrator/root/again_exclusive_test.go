package root

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestExclusiveAgainWaitsForWhatWasExclusiveBefore updates an exclusive instance to one
// that is not, which moves to another cluster at once, and back, while the first cluster
// has not confirmed that the first placement ended (seeds 267 and 1268).
func TestExclusiveAgainWaitsForWhatWasExclusiveBefore(t *testing.T) {
	w := newWorld(t, "a", "b")
	in := func(c string) func(*api.Microservice) {
		return func(m *api.Microservice) {
			m.Constraints = []api.Constraint{{Type: api.ConstrainClusters, Allowed: []string{c}}}
		}
	}
	w.apply(1, exclusive, in("a"))
	w.settle()
	if w.on("a") != 1 {
		t.Fatal("it does not run on a")
	}
	w.apply(1, in("a"))
	w.apply(1, in("b"))
	if got := w.instance(0); got.Cluster != "b" {
		t.Fatalf("it is on %q, want b", got.Cluster)
	}
	w.apply(1, exclusive, in("b"))
	b := w.twins["b"]
	for range 3 {
		b.run()
		w.do(b.report())
	}
	if got := w.instance(0); got.Cluster != "" {
		t.Fatalf("it is given to %q, and a may still run it", got.Cluster)
	}
	w.checkBooks()
	w.settle()
	if w.on("b") != 1 || w.running() != 1 {
		t.Errorf("%d run, %d of them on b", w.running(), w.on("b"))
	}
	w.checkBooks()
}
