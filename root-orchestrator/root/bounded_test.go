package root

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// TestAClusterThatClaimsWhatCannotBeGetsNothing has a cluster claim what no cluster
// has: the claim is refused, the rest of its report is taken, and one event a minute
// and a counter say so.
func TestAClusterThatClaimsWhatCannotBeGetsNothing(t *testing.T) {
	for name, lie := range map[string]func(*api.Aggregate){
		"negative nodes": func(a *api.Aggregate) { a.Nodes = -5 },
		"2^40 MiB":       func(a *api.Aggregate) { a.Free.MemoryMB = 1 << 40 },
		"10^12 vCPU":     func(a *api.Aggregate) { a.Largest.MilliCPU = 1e15 },
		"slot":           func(a *api.Aggregate) { a.Slots[0].Free.MilliCPU = math.MaxInt64 },
		"coordinate":     func(a *api.Aggregate) { a.Hull = []api.Geo{{Lat: math.NaN()}} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "a", "b")
			lies := func() {
				r := w.twins["a"].report()
				lie(&r.Aggregate)
				w.must(r)
			}
			lies()
			w.apply(1)
			if w.on("a") != 0 || w.on("b") != 1 {
				t.Errorf("a has %d instances, b %d", w.on("a"), w.on("b"))
			}
			for range 100 {
				w.now = w.now.Add(time.Second)
				lies()
			}
			said := 0
			for _, e := range w.c.Events(EventFilter{}) {
				if e.Reason == api.ReasonOutOfBounds {
					said++
					if e.Cluster != "a" || !strings.Contains(e.Detail, "aggregate.") {
						t.Errorf("%+v", e)
					}
				}
			}
			if n := w.c.RefusedValues(); said != 2 || n["a"] != 101 || n["b"] != 0 {
				t.Errorf("%d events of 101 reports; refused are %v", said, n)
			}
		})
	}
}

func TestAReportWithoutAPlaceInTimeIsRefused(t *testing.T) {
	w := newWorld(t, "a")
	r := w.twins["a"].report()
	r.Boot = math.MaxUint64
	if err := w.do(r).Err; !errors.Is(err, api.ErrInvalid) {
		t.Errorf("boot 2^64-1: %v", err)
	}
	if err := w.do(Hello{api.Hello{Cluster: "a", Since: math.MaxUint64}}).Err; !errors.Is(err, api.ErrInvalid) {
		t.Errorf("since 2^64-1: %v", err)
	}
	w.must(w.twins["a"].report()) // an honest one is heard after it
}
