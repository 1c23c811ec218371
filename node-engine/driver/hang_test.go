package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// down waits until the core is told that the runtime does not answer, and returns
// how long that took.
func (f *fixture) down(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		if in, ok := (<-f.told).(node.Info); ok && in.Info.RuntimeError != "" {
			return time.Since(began)
		}
	}
}

func TestRuntimeThatHangsIsNoticedBeforeTheOrdersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.setHangs(true)
		for n := range 50 {
			k := k1
			k.Instance = k1.Instance.Service().Instance(n)
			f.Order(wire.StopWorkload{Key: k, Grace: 10 * time.Second})
		}
		if took := f.down(t); took > 10*time.Second+patience+infoTime+time.Second {
			t.Errorf("noticed after %s, and a stop's deadline is %s", took, 10*time.Second+stopSlack)
		}
		f.rt.setHangs(false)
		for {
			if in, ok := (<-f.told).(node.Info); ok && in.Fresh {
				return
			}
		}
	})
}

func TestSlowOrderOfARuntimeThatAnswersIsWaitedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.slow = make(chan struct{})
		before := f.rt.infos
		for n := range 4 {
			k := k1
			k.Instance = k1.Instance.Service().Instance(n)
			f.Order(wire.CreateWorkload{Key: k})
		}
		time.Sleep(5*patience + time.Second)
		f.rt.mu.Lock()
		asked := f.rt.infos - before
		f.rt.mu.Unlock()
		if asked != 5 {
			t.Errorf("the runtime was asked %d times for a sign of life within %s, want 5 however many orders last", asked, 5*patience)
		}
		close(f.rt.slow)
		for range 4 {
			if e := f.event(t); e.Phase != wire.WorkloadCreated {
				t.Errorf("told %+v, want a creation", e)
			}
		}
	})
}

// tidy is a fake that is a Housekeeper.
type tidy struct{ *fakeRuntime }

func (tidy) Housekeep(context.Context) error { return nil }

func TestIdleRuntimeThatHangsIsNoticedByHousekeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := tidy{newFake()}
		f := &fixture{rt: rt.fakeRuntime, told: make(chan node.Input, 100)}
		f.Driver = New(Options{Runtime: rt, Deliver: func(_ context.Context, in node.Input) error { f.told <- in; return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = f.Run(ctx) }()
		defer func() { cancel(); <-done }()
		<-f.told
		rt.setHangs(true)
		if took := f.down(t); took > housekeepEvery+infoTime+time.Second {
			t.Errorf("noticed after %s, want %s at most", took, housekeepEvery+infoTime)
		}
	})
}
