package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fakeRuntime is a runtime in memory.
type fakeRuntime struct {
	mu      sync.Mutex
	have    map[wire.Key]runtime.Status
	calls   []string
	down    error
	slow    chan struct{} // creations wait for it, where set
	busy    int
	busiest int
	slowOf  api.Tenant // whose creations are slow; empty: all
	hangs   bool       // calls last until their context ends; the watch stays open
	infos   int        // calls of Info
	watch   context.CancelCauseFunc
	exits   chan<- runtime.Exit
}

func newFake() *fakeRuntime { return &fakeRuntime{have: map[wire.Key]runtime.Status{}} }

func (f *fakeRuntime) note(format string, args ...any) error {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	return f.down
}

// hang lasts until ctx ends where the runtime hangs.
func (f *fakeRuntime) hang(ctx context.Context) error {
	f.mu.Lock()
	hangs := f.hangs
	f.mu.Unlock()
	if !hangs {
		return nil
	}
	<-ctx.Done()
	return &runtime.Error{Reason: api.ReasonRuntimeDown, Err: ctx.Err()}
}

func (f *fakeRuntime) setHangs(h bool) {
	f.mu.Lock()
	f.hangs = h
	f.mu.Unlock()
}

func (f *fakeRuntime) Info(ctx context.Context) (runtime.Info, error) {
	if err := f.hang(ctx); err != nil {
		return runtime.Info{}, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.infos++
	return runtime.Info{Runtimes: []string{"fake"}}, f.down
}

func (f *fakeRuntime) Create(ctx context.Context, w runtime.Workload) error {
	f.mu.Lock()
	f.busy++
	f.busiest = max(f.busiest, f.busy)
	f.mu.Unlock()
	defer func() {
		f.mu.Lock()
		f.busy--
		f.mu.Unlock()
	}()
	if f.slow != nil && (f.slowOf == "" || w.Key.Instance.Tenant() == f.slowOf) {
		select {
		case <-f.slow:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.note("create %d", w.Attempt); err != nil {
		return err
	}
	f.have[w.Key] = runtime.Status{Key: w.Key, Attempt: w.Attempt, Phase: wire.WorkloadCreated, Spec: w.Spec}
	return nil
}

func (f *fakeRuntime) Start(_ context.Context, k wire.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.note("start"); err != nil {
		return err
	}
	s := f.have[k]
	s.Phase = wire.WorkloadRunning
	f.have[k] = s
	return nil
}

func (f *fakeRuntime) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	if err := f.hang(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.note("stop %s", grace); err != nil {
		return err
	}
	delete(f.have, k)
	return nil
}

func (f *fakeRuntime) List(context.Context) ([]runtime.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []runtime.Status
	for _, s := range f.have {
		all = append(all, s)
	}
	return all, f.down
}

func (f *fakeRuntime) Watch(ctx context.Context, exits chan<- runtime.Exit) error {
	f.mu.Lock()
	if f.down != nil {
		defer f.mu.Unlock()
		return f.down
	}
	ctx, f.watch = context.WithCancelCause(ctx)
	f.exits = exits
	f.mu.Unlock()
	<-ctx.Done()
	return context.Cause(ctx)
}

func (f *fakeRuntime) Logs(context.Context, wire.Key, int, bool) (io.ReadCloser, error) {
	return nil, api.ErrNotFound
}
func (f *fakeRuntime) Close() error { return nil }

func (f *fakeRuntime) said() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]string(nil), f.calls...)
}

var (
	k1  = wire.Key{Instance: "t/a.n.s.n#0", Epoch: 1}
	bad = &runtime.Error{Reason: api.ReasonRuntimeDown, Err: errors.New("no socket")}
)

type fixture struct {
	*Driver
	rt   *fakeRuntime
	told chan node.Input
}

func start(t *testing.T, fail func() error) *fixture {
	f := &fixture{rt: newFake(), told: make(chan node.Input, 100)}
	f.Driver = New(Options{
		Runtime: f.rt, Info: api.NodeInfo{ID: "n1"}, Log: slog.New(slog.DiscardHandler),
		Deliver: func(_ context.Context, in node.Input) error {
			if fail != nil {
				if err := fail(); err != nil {
					return err
				}
			}
			f.told <- in
			return nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if in := (<-f.told).(node.Info); !in.Fresh {
		t.Fatalf("first told %+v, want all that the runtime has", in)
	}
	return f
}

func (f *fixture) event(t *testing.T) wire.WorkloadEvent {
	t.Helper()
	in, ok := (<-f.told).(node.Workload)
	if !ok {
		t.Fatalf("told %+v, want a workload's", in)
	}
	return in.WorkloadEvent
}

func TestOrdersOfOnePlacementAreCarriedOutInTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.Order(wire.CreateWorkload{Key: k1, Attempt: 2})
		f.Order(wire.StartWorkload{Key: k1, Attempt: 2})
		for _, want := range []wire.WorkloadPhase{wire.WorkloadCreated, wire.WorkloadRunning} {
			if e := f.event(t); e.Phase != want || e.Attempt != 2 || e.Key != k1 {
				t.Errorf("told %+v, want %s", e, want)
			}
		}
		f.Order(wire.StopWorkload{Key: k1, Grace: time.Second})
		if e := f.event(t); e.Phase != wire.WorkloadGone {
			t.Errorf("told %+v, want gone", e)
		}
		if got := fmt.Sprint(f.rt.said()); got != "[create 2 start stop 1s]" {
			t.Errorf("the runtime was asked %s", got)
		}
	})
}

func TestStopOvertakesACreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.slow = make(chan struct{})
		f.Order(wire.CreateWorkload{Key: k1})
		synctest.Wait()
		f.Order(wire.StopWorkload{Key: k1, Grace: time.Hour})
		f.Order(wire.StopWorkload{Key: k1}) // says it all
		if e := f.event(t); e.Phase != wire.WorkloadGone {
			t.Errorf("told %+v, want gone", e)
		}
		synctest.Wait()
		if got := fmt.Sprint(f.rt.said()); got != "[stop 1h0m0s]" && got != "[stop 0s]" {
			t.Errorf("the runtime was asked %s", got)
		}
	})
}

func TestCreationsAreFewAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.slow = make(chan struct{})
		for i := range 10 {
			f.Order(wire.CreateWorkload{Key: wire.Key{Instance: api.ServiceID("t/a.n.s.n").Instance(i), Epoch: 1}})
		}
		synctest.Wait()
		close(f.rt.slow)
		for range 10 {
			f.event(t)
		}
		if f.rt.busiest != 4 {
			t.Errorf("%d at once, want 4", f.rt.busiest)
		}
	})
}

// The registry of one tenant does not answer: another's workload is created.
func TestSlowPullsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.slow = make(chan struct{})
		f.rt.slowOf = "loud"
		for i := range 100 {
			f.Order(wire.CreateWorkload{Key: wire.Key{Instance: api.ServiceID("loud/a.n.s.n").Instance(i), Epoch: 1}})
		}
		synctest.Wait()
		quiet := wire.Key{Instance: api.ServiceID("quiet/a.n.s.n").Instance(0), Epoch: 1}
		f.Order(wire.CreateWorkload{Key: quiet})
		if e := f.event(t); e.Key != quiet {
			t.Errorf("first heard of %v, want %v", e.Key, quiet)
		}
		close(f.rt.slow)
		for range 100 {
			f.event(t)
		}
	})
}

// A workload that is deleted while its creation waits behind slow ones of its tenant
// is gone at once.
func TestStopEndsACreationThatWaitsForItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.slow = make(chan struct{})
		var last wire.Key
		for i := range 20 {
			last = wire.Key{Instance: k1.Instance.Service().Instance(i), Epoch: 1}
			f.Order(wire.CreateWorkload{Key: last})
			synctest.Wait()
		}
		began := time.Now()
		f.Order(wire.StopWorkload{Key: last})
		if e := f.event(t); e.Key != last || e.Phase != wire.WorkloadGone {
			t.Errorf("first event %+v, want that %v is gone", e, last)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("gone after %s, want at once", took)
		}
		close(f.rt.slow)
		for range 19 {
			f.event(t)
		}
	})
}

func TestWhatHappenedIsToldUntilItIsHeard(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		f := start(t, func() error {
			if n++; n%3 != 0 {
				return api.ErrFull
			}
			return nil
		})
		f.Order(wire.StartWorkload{Key: k1})
		if e := f.event(t); e.Phase != wire.WorkloadRunning {
			t.Errorf("told %+v", e)
		}
		f.rt.exits <- runtime.Exit{Key: k1, ExitCode: 137, OOM: true}
		if e := f.event(t); e.Phase != wire.WorkloadExited || e.Reason != api.ReasonOutOfMemory || e.ExitCode != 137 {
			t.Errorf("told %+v", e)
		}
	})
}

func TestRuntimeThatFallsSilentAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.Order(wire.CreateWorkload{Key: k1})
		f.event(t)
		synctest.Wait()
		f.rt.mu.Lock()
		f.rt.down = bad
		f.rt.watch(errors.New("socket closed"))
		f.rt.mu.Unlock()
		in := (<-f.told).(node.Info)
		if in.Fresh || in.Info.RuntimeError == "" || in.Info.ID != "n1" {
			t.Fatalf("told %+v, want the runtime's silence", in)
		}
		f.Order(wire.StartWorkload{Key: k1})
		for {
			e, ok := (<-f.told).(node.Workload)
			if ok && e.Phase == wire.WorkloadFailed && e.Reason == api.ReasonRuntimeDown {
				break
			}
		}
		f.rt.mu.Lock()
		f.rt.down = nil
		f.rt.mu.Unlock()
		for {
			if in, ok := (<-f.told).(node.Info); ok && in.Fresh {
				if len(in.Found) != 1 || in.Info.RuntimeError != "" || in.Info.Runtimes[0] != "fake" {
					t.Errorf("told %+v", in)
				}
				return
			}
		}
	})
}

func TestOrdersBeforeRunAreKept(t *testing.T) {
	rt := newFake()
	told := make(chan node.Input, 10)
	d := New(Options{Runtime: rt, Deliver: func(_ context.Context, in node.Input) error { told <- in; return nil }})
	d.Order(wire.StartWorkload{Key: k1})
	if _, found, err := d.Find(t.Context()); err != nil || len(found) != 0 {
		t.Fatal(found, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = d.Run(ctx) }()
	for {
		if _, ok := (<-told).(node.Workload); ok {
			break
		}
	}
	cancel()
	<-done
	d.Order(wire.StartWorkload{Key: k1}) // after the end: nothing happens, nothing is left
}
