package root

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root/applications"
)

// TestAClusterWithImpossibleReportsGetsNoInstances has a cluster report values that are out of bounds.
// They are refused, the rest of the report is used, a counter counts them, and at most one event a
// minute reports them.
func TestAClusterWithImpossibleReportsGetsNoInstances(t *testing.T) {
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
			for _, e := range w.c.Events(eventlog.Filter{}) {
				if e.Reason == api.ReasonOutOfBounds {
					said++
					if e.Cluster != "a" || !strings.Contains(e.Detail, "aggregate.") {
						t.Errorf("the event is %+v, want one of cluster a about its aggregate", e)
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
	if err := w.do(Hello{wire.Hello{Cluster: "a", Since: math.MaxUint64}}).Err; !errors.Is(err, api.ErrInvalid) {
		t.Errorf("since 2^64-1: %v", err)
	}
	w.must(w.twins["a"].report()) // a later valid report is handled
}

// TestStateThatNeverShrinksIsBounded has a cluster add and remove instances of its own without
// ever confirming that nothing is left of them.
func TestStateThatNeverShrinksIsBounded(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.settle()
	first := w.c.clusters.Info("a").LocalNumbers()
	for i := range 2*MaxReplicas - 3 { // the earlier ones
		w.c.restoreInstance(&applications.Instance{ID: web.Instance(first + 50_000 + i), Leaving: true})
	}
	for i := range 10 {
		o := api.Observed{Instance: web.Instance(first + i), Epoch: 1, State: api.Running, Local: true}
		for range 2 {
			r := w.twins["a"].report()
			r.Observed = append(r.Observed, o)
			w.do(r)
			o.State, o.Reason = api.Terminated, api.ReasonScaledLocally
		}
	}
	if n := len(w.c.apps.InstancesOf(web)); n != 2*MaxReplicas {
		t.Errorf("%d instances are kept, want at most %d", n, 2*MaxReplicas)
	}
}
