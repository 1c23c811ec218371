package containerd

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
)

func TestTasksOfOneShimLeaveTurnsForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stops := fairshare.NewTurns(taskTurns, 3, 2)
		enter := func(ctx context.Context, shim string) (func(), error) {
			return stops.Enter(ctx, time.Now(), []string{shim}, false)
		}
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var leave []func()
		for _, shim := range []string{"a", "a", "b"} {
			done, err := enter(t.Context(), shim)
			if err != nil {
				t.Fatalf("shim %s: %v, want a turn", shim, err)
			}
			leave = append(leave, done)
		}
		for _, shim := range []string{"a", "b"} {
			if _, err := enter(soon, shim); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("shim %s beyond its share or the total: %v, want DeadlineExceeded", shim, err)
			}
		}
		waits := make(chan error)
		go func() {
			done, err := enter(t.Context(), "b")
			if err == nil {
				done()
			}
			waits <- err
		}()
		synctest.Wait()
		leave[0]()
		leave[0]() // a stop may leave twice
		if err := <-waits; err != nil {
			t.Errorf("shim b after a turn of a ended: %v", err)
		}
		leave[1]()
		leave[2]()
		if running, waiting := stops.Load(); running != 0 || waiting != 0 {
			t.Errorf("after all left: %d run and %d wait, want none", running, waiting)
		}
	})
}
