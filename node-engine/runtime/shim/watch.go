package shim

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// watcher is one call of Watch.
type watcher struct {
	ctx   context.Context
	exits chan<- runtime.Exit
}

// Watch implements runtime.Runtime.
func (r *Workloads) Watch(ctx context.Context, exits chan<- runtime.Exit) error {
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
		runtime.SendExit(ctx, exits, s)
	}
	<-ctx.Done()
	return nil
}

// adopt follows all workloads.
func (r *Workloads) adopt() error {
	dirs, err := r.dirs()
	if err != nil {
		return err
	}
	for _, d := range dirs {
		if err := r.follow(d.Name()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return nil
}

// follow reports the workload's exit to the watchers.
func (r *Workloads) follow(id string) error {
	s, err := r.state(id)
	if err != nil {
		return err
	}
	r.follows.Go(func() {
		if !s.run.Shim.gone(r.ctx) {
			return
		}
		// The shim ends after the workload, unless the shim was killed.
		if now, err := r.state(id); err != nil || !now.run.Main.gone(r.ctx) {
			return
		}
		// The exit is reported even if other processes of the group cannot be killed.
		if err := r.Group(id).Kill(r.ctx); err != nil && r.ctx.Err() != nil {
			return
		}
		st, err := r.status(id)
		if err != nil || st.Attempt != s.plan.Attempt {
			return
		}
		r.mu.Lock()
		watchers := slices.Collect(maps.Keys(r.watchers))
		r.mu.Unlock()
		for _, w := range watchers {
			runtime.SendExit(w.ctx, w.exits, st)
		}
	})
	return nil
}
