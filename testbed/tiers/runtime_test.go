package tiers

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// fakeRuntime records orders and runs nothing. Like containers, it outlives the engines that use
// it.
type fakeRuntime struct {
	mu      sync.Mutex
	have    map[wire.Key]runtime.Status
	creates int
	stops   int
	exits   map[chan<- runtime.Exit]context.Context
	paused  chan struct{} // creations wait until it is closed; nil: they do not wait
}

func newRuntime() *fakeRuntime {
	return &fakeRuntime{have: map[wire.Key]runtime.Status{}, exits: map[chan<- runtime.Exit]context.Context{}}
}

func (f *fakeRuntime) Info(context.Context) (runtime.Info, error) {
	return runtime.Info{Version: "fake", Runtimes: []string{"container"}}, nil
}

// pause makes creations wait until goOn.
func (f *fakeRuntime) pause() (goOn func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.paused = make(chan struct{})
	return func() { close(f.paused) }
}

func (f *fakeRuntime) Create(ctx context.Context, w runtime.Workload) error {
	f.mu.Lock()
	paused := f.paused
	f.mu.Unlock()
	if paused != nil {
		select {
		case <-paused:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.creates++
	f.have[w.Key] = runtime.Status{Key: w.Key, Attempt: w.Attempt, Phase: wire.WorkloadCreated, Spec: w.Spec}
	return nil
}

func (f *fakeRuntime) Start(_ context.Context, k wire.Key) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	s, ok := f.have[k]
	if !ok {
		return fmt.Errorf("start %s: %w", k, api.ErrNotFound)
	}
	s.Phase = wire.WorkloadRunning
	f.have[k] = s
	return nil
}

func (f *fakeRuntime) Stop(_ context.Context, k wire.Key, _ time.Duration) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.stops++
	delete(f.have, k)
	return nil
}

func (f *fakeRuntime) Kill(_ context.Context, k wire.Key, _ time.Duration) error {
	f.kill(k, 143)
	return nil
}

func (f *fakeRuntime) List(context.Context) ([]runtime.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []runtime.Status
	for _, s := range f.have {
		all = append(all, s)
	}
	return all, nil
}

func (f *fakeRuntime) Watch(ctx context.Context, exits chan<- runtime.Exit) error {
	f.mu.Lock()
	f.exits[exits] = ctx
	f.mu.Unlock()
	<-ctx.Done()
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.exits, exits)
	return ctx.Err()
}

// kill ends a workload like a crash.
func (f *fakeRuntime) kill(k wire.Key, code int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.have[k]
	s.Phase, s.ExitCode = wire.WorkloadExited, code
	f.have[k] = s
	for c := range f.exits {
		c <- runtime.Exit{Key: k, Attempt: s.Attempt, ExitCode: code}
	}
}

func (f *fakeRuntime) running() []wire.Key {
	f.mu.Lock()
	defer f.mu.Unlock()
	var keys []wire.Key
	for k, s := range f.have {
		if s.Phase == wire.WorkloadRunning {
			keys = append(keys, k)
		}
	}
	return keys
}

func (f *fakeRuntime) counts() (creates, stops int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.creates, f.stops
}

func (f *fakeRuntime) Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, ok := f.have[k]; !ok {
		return nil, fmt.Errorf("logs of %s: %w", k, api.ErrNotFound)
	}
	if !follow {
		return io.NopCloser(strings.NewReader(fmt.Sprintf("tail %d of %s\n", tail, k.Instance))), nil
	}
	r, w := io.Pipe()
	go func() { _, _ = io.WriteString(w, "first line\n") }() // no further line follows
	return r, nil
}

func (f *fakeRuntime) Close() error { return nil }

// Exec runs three programs: echo, cat, and false, which exits with 3.
func (f *fakeRuntime) Exec(_ context.Context, k wire.Key, p runtime.Process) (runtime.Running, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.have[k].Phase != wire.WorkloadRunning {
		return nil, fmt.Errorf("exec in %s: %w", k, api.ErrNotFound)
	}
	ended := make(fakeProcess, 1)
	switch p.Args[0] {
	case "echo":
		go func() {
			_, _ = fmt.Fprintln(p.Stdout, strings.Join(p.Args[1:], " "))
			ended <- 0
		}()
	case "cat":
		go func() {
			_, _ = io.Copy(p.Stdout, p.Stdin)
			ended <- 0
		}()
	case "false":
		ended <- 3
	default:
		return nil, fmt.Errorf("start %q: not found: %w", p.Args[0], api.ErrInvalid)
	}
	return ended, nil
}

// fakeProcess has the exit code when the process has ended.
type fakeProcess chan int

func (p fakeProcess) Resize(uint16, uint16) error { return nil }

func (p fakeProcess) Wait(ctx context.Context) (int, error) {
	select {
	case code := <-p:
		return code, nil
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}
