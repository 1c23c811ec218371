package wiring

import (
	"context"
	"sync"

	"github.com/treeline-edge/treeline/api"
)

// watches run something for each workload that somebody wants watched, one at a time
// for each network namespace that it has, until it is over or the workload is
// forgotten.
type watches struct {
	run func(ctx context.Context, a api.Attach)

	mu     sync.Mutex // guards the fields below
	ctx    context.Context
	all    map[api.Key]watch // under way, or to begin with Run
	wg     sync.WaitGroup
	closed bool
}

type watch struct {
	attach api.Attach
	end    context.CancelFunc
}

func newWatches(run func(context.Context, api.Attach)) *watches {
	return &watches{run: run, all: map[api.Key]watch{}}
}

// Run watches until ctx ends.
func (w *watches) Run(ctx context.Context) error {
	w.mu.Lock()
	w.ctx = ctx
	early := w.all
	w.all = make(map[api.Key]watch, len(early))
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

// watch has a workload watched, unless it is already, in the same namespace.
func (w *watches) watch(a api.Attach) {
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

// begin is called with mu held.
func (w *watches) begin(a api.Attach) {
	ctx, end := context.WithCancel(w.ctx)
	w.all[a.Key] = watch{a, end}
	w.wg.Go(func() {
		defer end()
		w.run(ctx, a)
		w.mu.Lock()
		defer w.mu.Unlock()
		if ctx.Err() == nil { // else somebody else saw to it
			delete(w.all, a.Key)
		}
	})
}

// forget ends a workload's watch.
func (w *watches) forget(k api.Key) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if x, ok := w.all[k]; ok {
		delete(w.all, k)
		x.end()
	}
}
