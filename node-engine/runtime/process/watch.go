package process

import (
	"context"
	"errors"
	"io/fs"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// watcher is one call of Watch.
type watcher struct {
	ctx   context.Context
	exits chan<- runtime.Exit
}

// Watch implements runtime.Runtime.
func (r *Runtime) Watch(ctx context.Context, exits chan<- runtime.Exit) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(r.ctx, cancel)()
	w := &watcher{ctx: ctx, exits: exits}
	r.mu.Lock()
	r.watchers[w] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.watchers, w)
		r.mu.Unlock()
	}()
	found, err := r.List(ctx)
	if err != nil {
		return err
	}
	for _, s := range found {
		if s.Phase == wire.WorkloadExited {
			w.send(s)
		}
	}
	<-ctx.Done()
	return nil
}

func (w *watcher) send(s runtime.Status) {
	select {
	case w.exits <- runtime.Exit{Key: s.Key, Attempt: s.Attempt, ExitCode: s.ExitCode, OOM: s.OOM}:
	case <-w.ctx.Done():
	}
}

// adopt follows everything that runs.
func (r *Runtime) adopt() error {
	ids, err := r.ids()
	if err != nil {
		return err
	}
	for _, id := range ids {
		if err := r.follow(id); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// follow tells the watchers when the workload exits.
func (r *Runtime) follow(id string) error {
	s, err := r.state(id)
	if err != nil {
		return err
	}
	r.lives.Go(func() {
		if !s.run.Shim.gone(r.ctx) {
			return
		}
		// The shim goes last, unless somebody killed it.
		if now, err := r.state(id); err != nil || !now.run.Main.gone(r.ctx) {
			return
		}
		// Its exit is reported even if other processes of its group cannot be killed.
		if err := r.group(id).Kill(r.ctx); err != nil && r.ctx.Err() != nil {
			return
		}
		st, err := r.status(id)
		if err != nil || st.Phase != wire.WorkloadExited || st.Attempt != s.plan.Attempt {
			return
		}
		r.mu.Lock()
		var now []*watcher
		for w := range r.watchers {
			now = append(now, w)
		}
		r.mu.Unlock()
		for _, w := range now {
			w.send(st)
		}
	})
	return nil
}
