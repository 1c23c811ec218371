package driver

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// slowRuntime has starts and stops that wait for done.
type slowRuntime struct {
	*fakeRuntime
	done chan struct{} // one for each
}

func (r slowRuntime) Start(ctx context.Context, k wire.Key) error {
	<-r.done
	return r.fakeRuntime.Start(ctx, k)
}

func (r slowRuntime) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	<-r.done
	return r.fakeRuntime.Stop(ctx, k, grace)
}

func (r slowRuntime) CgroupOf(context.Context, wire.Key) (string, error) {
	return "/w", nil
}

// fakeGuard records its calls, each of which takes 1 ms.
type fakeGuard struct {
	mu    sync.Mutex
	began time.Time
	calls []string
}

func (g *fakeGuard) note(what string) error {
	time.Sleep(time.Millisecond)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls = append(g.calls, what)
	return nil
}

func (g *fakeGuard) Set(_ context.Context, _ wire.Key, _ string, until time.Time) error {
	return g.note(until.Sub(g.began).String())
}

func (g *fakeGuard) Lift(context.Context, wire.Key) error { return g.note("lift") }

// A start, or the grace of a stop, may last longer than the rest of the lease. When the lease is
// renewed meanwhile, the guard must be moved at once, or it kills the workload.
func TestGuardIsMovedDuringAStartOrAStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, guard := slowRuntime{newFake(), make(chan struct{})}, &fakeGuard{began: time.Now()}
		inputs := make(chan node.Input, 100)
		d := New(Options{
			Runtime: rt, Guard: guard, Log: slog.New(slog.DiscardHandler),
			Deliver: func(_ context.Context, in node.Input) error { inputs <- in; return nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var runs sync.WaitGroup
		runs.Go(func() { _ = d.Run(ctx) })
		defer runs.Wait()
		defer cancel()
		<-inputs // the first Info

		guards := func(s int) {
			d.Order(wire.GuardWorkload{Key: k1, Until: guard.began.Add(time.Duration(s) * time.Second)})
		}
		holds := func(want string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			guard.mu.Lock()
			defer guard.mu.Unlock()
			if got := fmt.Sprint(guard.calls); got != want {
				t.Errorf("calls of the guard: got %s, want %s", got, want)
			}
		}
		guards(5)
		d.Order(wire.StartWorkload{Key: k1})
		holds("[5s]")
		guards(7)
		holds("[5s 7s]")
		d.Order(wire.StopWorkload{Key: k1, Grace: time.Minute})
		guards(8)
		holds("[5s 7s]")
		rt.done <- struct{}{}
		<-inputs
		holds("[5s 7s 8s]")
		guards(9)
		holds("[5s 7s 8s 9s]")
		// Orders after the stop wait for it, and for the guard.
		guards(11)
		rt.done <- struct{}{}
		d.Order(wire.GuardWorkload{Key: k1})
		d.Order(wire.CreateWorkload{Key: k1})
		guards(20)
		holds("[5s 7s 8s 9s 11s lift 20s]")
	})
}
