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
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// slowRuntime takes as long for a start or a stop as it is told.
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

func (r slowRuntime) CgroupOf(context.Context, wire.Key) (runtime.Target, error) {
	return runtime.Target{Cgroup: "/w"}, nil
}

// fakeGuard notes what it is asked; each order takes it a moment.
type fakeGuard struct {
	mu    sync.Mutex
	began time.Time
	said  []string
}

func (g *fakeGuard) note(what string) error {
	time.Sleep(time.Millisecond)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.said = append(g.said, what)
	return nil
}

func (g *fakeGuard) Set(_ context.Context, _ wire.Key, _ runtime.Target, until time.Time) error {
	return g.note(until.Sub(g.began).String())
}

func (g *fakeGuard) Lift(context.Context, wire.Key) error { return g.note("lift") }

// A start, or the grace of a stop, may last longer than what is left of the lease,
// which is renewed meanwhile: the guard must hear of it at once, or it kills.
func TestGuardIsMovedWhileAStartOrAStopLasts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt, guard := slowRuntime{newFake(), make(chan struct{})}, &fakeGuard{began: time.Now()}
		told := make(chan node.Input, 100)
		d := New(Options{
			Runtime: rt, Guard: guard, Log: slog.New(slog.DiscardHandler),
			Deliver: func(_ context.Context, in node.Input) error { told <- in; return nil },
		})
		ctx, cancel := context.WithCancel(t.Context())
		var runs sync.WaitGroup
		runs.Go(func() { _ = d.Run(ctx) })
		defer runs.Wait()
		defer cancel()
		<-told // all that there is

		guards := func(s int) {
			d.Order(wire.GuardWorkload{Key: k1, Until: guard.began.Add(time.Duration(s) * time.Second)})
		}
		holds := func(want string) {
			t.Helper()
			time.Sleep(time.Second)
			synctest.Wait()
			guard.mu.Lock()
			defer guard.mu.Unlock()
			if got := fmt.Sprint(guard.said); got != want {
				t.Errorf("the guard was told %s, want %s", got, want)
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
		<-told
		holds("[5s 7s 8s]")
		guards(9)
		holds("[5s 7s 8s 9s]")
		// What is ordered after the stop waits for it, and for the guard.
		guards(11)
		rt.done <- struct{}{}
		d.Order(wire.GuardWorkload{Key: k1})
		d.Order(wire.CreateWorkload{Key: k1})
		guards(20)
		holds("[5s 7s 8s 9s 11s lift 20s]")
	})
}
