// Package workloads watches the workloads that are attached to the network: when they
// listen, when their process exits, and the TCP measurements of their connections.
package workloads

import (
	"context"
	"sync"

	"github.com/treeline-edge/treeline/internal/wire"
)

// Watcher runs a function for each watched workload, once per network namespace, until the
// function returns or the workload is removed. Its methods are safe for concurrent use.
type Watcher struct {
	run func(ctx context.Context, a wire.Attach)

	mu     sync.Mutex // guards the fields below
	ctx    context.Context
	all    map[wire.Key]watch // running, or to start with Run
	wg     sync.WaitGroup
	closed bool
}

type watch struct {
	attach wire.Attach
	end    context.CancelFunc
}

func newWatcher(run func(context.Context, wire.Attach)) *Watcher {
	return &Watcher{run: run, all: map[wire.Key]watch{}}
}

// Run watches until ctx ends.
func (w *Watcher) Run(ctx context.Context) error {
	w.mu.Lock()
	w.ctx = ctx
	early := w.all
	w.all = make(map[wire.Key]watch, len(early))
	for _, x := range early {
		w.begin(x.attach)
	}
	w.mu.Unlock()
	<-ctx.Done()
	w.mu.Lock()
	w.closed = true
	w.mu.Unlock()
	w.wg.Wait()
	return nil
}

// Watch watches a workload, unless it is watched already in the same namespace.
func (w *Watcher) Watch(a wire.Attach) {
	w.mu.Lock()
	defer w.mu.Unlock()
	old, ok := w.all[a.Key]
	switch {
	case w.ctx == nil:
		w.all[a.Key] = watch{a, func() {}}
	case w.closed, ok && old.attach.NetNS == a.NetNS:
	default:
		if ok {
			old.end()
		}
		w.begin(a)
	}
}

// begin starts a watch. w.mu is held.
func (w *Watcher) begin(a wire.Attach) {
	ctx, end := context.WithCancel(w.ctx)
	w.all[a.Key] = watch{a, end}
	w.wg.Go(func() {
		defer end()
		w.run(ctx, a)
		w.mu.Lock()
		defer w.mu.Unlock()
		if ctx.Err() == nil { // otherwise the watch was removed or replaced
			delete(w.all, a.Key)
		}
	})
}

// Remove ends a workload's watch.
func (w *Watcher) Remove(k wire.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x, ok := w.all[k]; ok {
		delete(w.all, k)
		x.end()
	}
}
