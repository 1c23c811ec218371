package root

import (
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestCountsAfterScalingDown scales a service from 3 to 2. It checks the views of the service and
// the application, and the published changes, before and after the cluster has stopped the third
// instance.
func TestCountsAfterScalingDown(t *testing.T) {
	for _, c := range []struct {
		name string
		want api.App // its counts
		with func(w *world)
	}{
		{"all run", api.App{Running: 2, Wanted: 2}, func(w *world) { w.apply(3); w.settle() }},
		{"all have completed", api.App{Completed: 2, Wanted: 2}, func(w *world) {
			w.apply(3, func(m *api.Microservice) { m.OneShot = true })
			w.settle()
			for n := range 3 {
				w.reports("a", n, func(o *api.Observed) { o.State = api.Completed })
			}
		}},
		{"one has failed for good, which goes first", api.App{Running: 1, Completed: 1, Wanted: 2}, func(w *world) {
			w.apply(3, func(m *api.Microservice) { m.OneShot = true })
			w.settle()
			w.reports("a", 0, failedForGood)
			w.reports("a", 1, func(o *api.Observed) { o.State = api.Completed })
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, "a")
			c.with(w)
			w.twins["a"].off = true // it does not report for now
			check := func(when string) {
				t.Helper()
				a, _ := w.c.App(shop)
				s, _ := w.c.Service(web)
				if a.Running != c.want.Running || a.Completed != c.want.Completed || a.Failed != 0 || a.Wanted != c.want.Wanted {
					t.Errorf("%s the application has %d running, %d completed, %d failed of %d", when, a.Running, a.Completed, a.Failed, a.Wanted)
				}
				if s.Running != a.Running || s.Completed != a.Completed || s.Failed != 0 || s.Replicas != a.Wanted {
					t.Errorf("%s the service has %d running, %d completed, %d failed of %d", when, s.Running, s.Completed, s.Failed, s.Replicas)
				}
				for _, e := range w.last.Send {
					ch, ok := e.Msg.(api.Change)
					if a, isApp := ch.Object.(api.App); ok && isApp && (a.Running != c.want.Running || a.Completed != c.want.Completed || a.Wanted != c.want.Wanted) {
						t.Errorf("%s those who watch are told of %d running, %d completed of %d", when, a.Running, a.Completed, a.Wanted)
					}
				}
			}
			w.must(Scale{Service: web, Replicas: 2})
			check("at once")
			w.restart()
			check("after a restart")
			w.twins["a"].off = false
			w.settle()
			check("when the third is gone")
			if n := len(w.c.Instances("")); n != 2 {
				t.Errorf("there are %d instances, want 2", n)
			}
		})
	}
}
