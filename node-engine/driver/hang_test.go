package driver

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// down waits until the driver reports that the runtime does not answer, and returns how long that
// took.
func (f *fixture) down(t *testing.T) time.Duration {
	t.Helper()
	began := time.Now()
	for {
		if in, ok := (<-f.inputs).(node.Info); ok && in.Info.RuntimeError != "" {
			return time.Since(began)
		}
	}
}

func TestHangingRuntimeIsDetectedBeforeTheOrdersTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.setHangs(true)
		for n := range 50 {
			k := k1
			k.Instance = k1.Instance.Service().Instance(n)
			f.Order(wire.StopWorkload{Key: k, Grace: 10 * time.Second})
		}
		if took := f.down(t); took > 10*time.Second+probeInterval+infoTimeout+time.Second {
			t.Errorf("time until detection: got %s, want less than the stop's timeout %s", took, 10*time.Second+stopTimeout)
		}
		f.rt.setHangs(false)
		for {
			if in, ok := (<-f.inputs).(node.Info); ok && in.Fresh {
				return
			}
		}
	})
}

func TestSlowOrderIsNotCancelledIfTheRuntimeAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.slow = make(chan struct{})
		before := f.rt.infos
		for n := range 4 {
			k := k1
			k.Instance = k1.Instance.Service().Instance(n)
			f.Order(wire.CreateWorkload{Key: k})
		}
		time.Sleep(5*probeInterval + time.Second)
		f.rt.mu.Lock()
		asked := f.rt.infos - before
		f.rt.mu.Unlock()
		if asked != 5 {
			t.Errorf("probes within %[2]s: got %[1]d, want 5, however many orders last", asked, 5*probeInterval)
		}
		close(f.rt.slow)
		for range 4 {
			if e := f.event(t); e.Phase != wire.WorkloadCreated {
				t.Errorf("event: got %+v, want phase created", e)
			}
		}
	})
}

// tidy is a fakeRuntime that implements runtime.Housekeeper.
type tidy struct{ *fakeRuntime }

func (tidy) Housekeep(context.Context) error { return nil }

func TestHangingIdleRuntimeIsDetectedByHousekeeping(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := tidy{newFake()}
		f := &fixture{rt: rt.fakeRuntime, inputs: make(chan node.Input, 100)}
		f.Driver = New(Options{Runtime: rt, Deliver: func(_ context.Context, in node.Input) error { f.inputs <- in; return nil }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = f.Run(ctx) }()
		defer func() { cancel(); <-done }()
		<-f.inputs
		rt.setHangs(true)
		if took := f.down(t); took > housekeepInterval+infoTimeout+time.Second {
			t.Errorf("time until detection: got %s, want at most %s", took, housekeepInterval+infoTimeout)
		}
	})
}
