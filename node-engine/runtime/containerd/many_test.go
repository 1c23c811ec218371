package containerd

import (
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

// TestManyStopsAtOnce stops all containers of one application at once, twice. They share a
// shim, which must not hang and must not get more stops than it can carry out in time.
func TestManyStopsAtOnce(t *testing.T) {
	const containers, rounds = 50, 2
	daemon := runtimetest.StartContainerd(t)
	r := openRuntime(t, testConfig(t, daemon, imageDir(t)))
	for round := range rounds {
		var wg sync.WaitGroup
		slots := make(chan struct{}, 4) // as the driver does
		for n := range containers {
			wg.Go(func() {
				slots <- struct{}{}
				defer func() { <-slots }()
				w := newWorkload(2*n, "sleep")
				if err := createAndStart(t.Context(), r, w); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if t.Failed() {
			return
		}
		began := time.Now()
		for n := range containers {
			wg.Go(func() {
				if err := r.Stop(t.Context(), newWorkload(2*n).Key, 10*time.Second); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		t.Logf("round %d: %d containers stopped in %s", round, containers, time.Since(began).Round(time.Millisecond))
		left, err := r.List(t.Context())
		if err != nil || len(left) > 0 || t.Failed() {
			t.Fatalf("containers after all were stopped: got %d (%v), want none", len(left), err)
		}
	}
}
