package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
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
	slow    chan struct{} // creations wait for it; nil: they do not
	busy    int
	busiest int
	slowOf  api.Tenant // whose creations are slow; empty: all
	hangs   bool       // calls last until their context ends; the watch stays open
	infos   int        // calls of Info
	joins   bool       // workloads are connected while they are created
	refuse  error      // of creations
	watch   context.CancelCauseFunc
	exits   chan<- runtime.Exit
}

func newFake() *fakeRuntime { return &fakeRuntime{have: map[wire.Key]runtime.Status{}} }

func (f *fakeRuntime) note(format string, args ...any) error {
	f.calls = append(f.calls, fmt.Sprintf(format, args...))
	return f.down
}

// hang waits until ctx ends if the runtime hangs.
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
	if w.Connect != nil && f.joins {
		f.mu.Unlock()
		w.Connect(ctx, "/ns/early", w)
		f.mu.Lock()
	}
	if err := f.note("create %d", w.Attempt); err != nil {
		return err
	}
	if f.refuse != nil {
		return f.refuse
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

func (f *fakeRuntime) Kill(ctx context.Context, k wire.Key, grace time.Duration) error {
	if err := f.hang(ctx); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.note("kill %s", grace)
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

func (f *fakeRuntime) made() []string {
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
	rt     *fakeRuntime
	inputs chan node.Input
}

func start(t *testing.T, fail func() error) *fixture {
	f := &fixture{rt: newFake(), inputs: make(chan node.Input, 100)}
	f.Driver = New(Options{
		Runtime: f.rt, Info: api.NodeInfo{ID: "n1"}, Log: slog.New(slog.DiscardHandler),
		Deliver: func(_ context.Context, in node.Input) error {
			if fail != nil {
				if err := fail(); err != nil {
					return err
				}
			}
			f.inputs <- in
			return nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = f.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	if in := (<-f.inputs).(node.Info); !in.Fresh {
		t.Fatalf("first input: got %+v, want a fresh Info", in)
	}
	return f
}

func (f *fixture) event(t *testing.T) wire.WorkloadEvent {
	t.Helper()
	in, ok := (<-f.inputs).(node.Workload)
	if !ok {
		t.Fatalf("input: got %+v, want a Workload", in)
	}
	return in.WorkloadEvent
}

func TestOrdersOfOnePlacementAreSequential(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.Order(wire.CreateWorkload{Key: k1, Attempt: 2})
		f.Order(wire.StartWorkload{Key: k1, Attempt: 2})
		for _, want := range []wire.WorkloadPhase{wire.WorkloadCreated, wire.WorkloadRunning} {
			if e := f.event(t); e.Phase != want || e.Attempt != 2 || e.Key != k1 {
				t.Errorf("event: got %+v, want phase %s", e, want)
			}
		}
		f.Order(wire.StopWorkload{Key: k1, Grace: time.Second})
		if e := f.event(t); e.Phase != wire.WorkloadGone {
			t.Errorf("event: got %+v, want phase gone", e)
		}
		if got := fmt.Sprint(f.rt.made()); got != "[create 2 start stop 1s]" {
			t.Errorf("calls of the runtime: got %s, want only the orders in sequence", got)
		}
	})
}

func TestStopCancelsACreation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.rt.slow = make(chan struct{})
		f.Order(wire.CreateWorkload{Key: k1})
		synctest.Wait()
		f.Order(wire.StopWorkload{Key: k1, Grace: time.Hour})
		f.Order(wire.StopWorkload{Key: k1}) // replaces the first
		if e := f.event(t); e.Phase != wire.WorkloadGone {
			t.Errorf("event: got %+v, want phase gone", e)
		}
		synctest.Wait()
		if got := fmt.Sprint(f.rt.made()); !slices.Contains([]string{"[stop 1h0m0s]", "[stop 0s]", "[stop 1h0m0s stop 0s]"}, got) {
			t.Errorf("calls of the runtime: got %s, want only the orders in sequence", got)
		}
	})
}

func TestConcurrentCreationsAreLimited(t *testing.T) {
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
			t.Errorf("concurrent creations: got %d, want 4", f.rt.busiest)
		}
	})
}

// The registry of one tenant does not answer. The workload of another tenant is created nevertheless.
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
			t.Errorf("first event: got one of %v, want %v", e.Key, quiet)
		}
		close(f.rt.slow)
		for range 100 {
			f.event(t)
		}
	})
}

// A stop does not wait for the slow creations before the one that it cancels.
func TestStopCancelsAWaitingCreation(t *testing.T) {
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
			t.Errorf("first event: got %+v, want phase gone of %v", e, last)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("time until the event: got %s, want less than 1 s", took)
		}
		close(f.rt.slow)
		for range 19 {
			f.event(t)
		}
	})
}

func TestDeliveryIsRetried(t *testing.T) {
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
			t.Errorf("event: got %+v, want what happened", e)
		}
		f.rt.exits <- runtime.Exit{Key: k1, ExitCode: 137, OOM: true}
		if e := f.event(t); e.Phase != wire.WorkloadExited || e.Reason != api.ReasonOutOfMemory || e.ExitCode != 137 {
			t.Errorf("event: got %+v, want what happened", e)
		}
	})
}

func TestRuntimeGoesDownAndReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := start(t, nil)
		f.Order(wire.CreateWorkload{Key: k1})
		f.event(t)
		synctest.Wait()
		f.rt.mu.Lock()
		f.rt.down = bad
		f.rt.watch(errors.New("socket closed"))
		f.rt.mu.Unlock()
		in := (<-f.inputs).(node.Info)
		if in.Fresh || in.Info.RuntimeError == "" || in.Info.ID != "n1" {
			t.Fatalf("input: got %+v, want an Info with RuntimeError", in)
		}
		f.Order(wire.StartWorkload{Key: k1})
		for {
			e, ok := (<-f.inputs).(node.Workload)
			if ok && e.Phase == wire.WorkloadFailed && e.Reason == api.ReasonRuntimeDown {
				break
			}
		}
		time.Sleep(8 * time.Second) // as long as a slow machine needs to start containerd
		f.rt.mu.Lock()
		f.rt.down = nil
		f.rt.mu.Unlock()
		returned := time.Now()
		for {
			if in, ok := (<-f.inputs).(node.Info); ok && in.Fresh {
				if lag := time.Since(returned); lag > 2500*time.Millisecond {
					t.Errorf("the return of the runtime after 8 s was noticed after %s, want at most 2.5 s", lag)
				}
				if len(in.Found) != 1 || in.Info.RuntimeError != "" || in.Info.Runtimes[0] != "fake" {
					t.Errorf("fresh Info: got %+v, want the runtime and its workload", in)
				}
				return
			}
		}
	})
}

func TestOrdersBeforeRunAreKept(t *testing.T) {
	rt := newFake()
	inputs := make(chan node.Input, 10)
	d := New(Options{Runtime: rt, Deliver: func(_ context.Context, in node.Input) error { inputs <- in; return nil }})
	d.Order(wire.StartWorkload{Key: k1})
	if _, found, err := d.Find(t.Context()); err != nil || len(found) != 0 {
		t.Fatal(found, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = d.Run(ctx) }()
	for {
		if _, ok := (<-inputs).(node.Workload); ok {
			break
		}
	}
	cancel()
	<-done
	d.Order(wire.StartWorkload{Key: k1}) // has no effect after Run
}
