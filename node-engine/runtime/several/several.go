// Package several runs several runtimes on one node. Each workload belongs to the runtime of its
// `virtualization`.
package several

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
	"golang.org/x/sync/errgroup"
)

// Member is one of several runtimes.
type Member struct {
	runtime.Runtime
	// Virtualizations are the values that it runs. One member may have none: it gets the others.
	Virtualizations []string
	// Has reports whether it has the workload. It does not block. It is nil for the member without
	// Virtualizations, which is asked for the workloads that no other has.
	Has func(k wire.Key) bool
}

// New returns a runtime of at least two members, which it closes. It is a runtime.Filer and a
// runtime.Attacher if a member is both.
//
// It answers only while all members do: otherwise it could report that a workload is gone although its
// runtime does not answer.
func New(members ...Member) runtime.Runtime {
	s := &several{members}
	if slices.ContainsFunc(members, func(m Member) bool { return is[runtime.Filer](m) && is[runtime.Attacher](m) }) {
		return containers{s}
	}
	return s
}

func is[T any](m Member) bool {
	_, ok := m.Runtime.(T)
	return ok
}

// several is a runtime.Runtime with the optional interfaces that every two runtimes have between them.
type several struct{ members []Member }

// containers has what containers can have, too.
type containers struct{ *several }

// errNot is the error of what the runtime of a workload cannot do.
func errNot(k wire.Key, what string) error {
	return fmt.Errorf("the runtime of %s %s: %w", k.Instance, what, api.ErrUnavailable)
}

// of returns the runtime that has the workload, or would have it.
func (s *several) of(k wire.Key) runtime.Runtime {
	rest := s.members[0].Runtime
	for _, m := range s.members {
		switch {
		case m.Has == nil:
			rest = m.Runtime
		case m.Has(k):
			return m.Runtime
		}
	}
	return rest
}

// Info implements runtime.Runtime.
func (s *several) Info(ctx context.Context) (runtime.Info, error) {
	var all runtime.Info
	var versions []string
	for _, m := range s.members {
		info, err := m.Info(ctx)
		if err != nil {
			return runtime.Info{}, err
		}
		versions = append(versions, info.Version)
		all.Mounts, all.Layers = all.Mounts || info.Mounts, all.Layers || info.Layers
		all.Runtimes = append(all.Runtimes, info.Runtimes...)
	}
	all.Version = strings.Join(versions, ", ")
	slices.Sort(all.Runtimes)
	all.Runtimes = slices.Compact(all.Runtimes)
	return all, nil
}

// runs returns the runtime that runs the value of `virtualization`.
func (s *several) runs(virtualization string) runtime.Runtime {
	rest := s.members[0].Runtime
	for _, m := range s.members {
		switch {
		case slices.Contains(m.Virtualizations, virtualization):
			return m.Runtime
		case len(m.Virtualizations) == 0:
			rest = m.Runtime
		}
	}
	return rest
}

// Create implements runtime.Runtime.
func (s *several) Create(ctx context.Context, w runtime.Workload) error {
	return s.runs(w.Spec.Virtualization).Create(ctx, w)
}

// Fetch implements runtime.Fetcher. It does nothing for a runtime without images.
func (s *several) Fetch(ctx context.Context, w runtime.Workload) error {
	if f, ok := s.runs(w.Spec.Virtualization).(runtime.Fetcher); ok {
		return f.Fetch(ctx, w)
	}
	return nil
}

// Start implements runtime.Runtime.
func (s *several) Start(ctx context.Context, k wire.Key) error { return s.of(k).Start(ctx, k) }

// Stop implements runtime.Runtime.
func (s *several) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	return s.of(k).Stop(ctx, k, grace)
}

// Kill implements runtime.Runtime.
func (s *several) Kill(ctx context.Context, k wire.Key, grace time.Duration) error {
	return s.of(k).Kill(ctx, k, grace)
}

// List implements runtime.Runtime.
func (s *several) List(ctx context.Context) (all []runtime.Status, err error) {
	for _, m := range s.members {
		list, err := m.List(ctx)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

// Watch implements runtime.Runtime.
func (s *several) Watch(ctx context.Context, exits chan<- runtime.Exit) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range s.members {
		g.Go(func() error {
			defer cancel() // the end of one is the end of all
			return m.Watch(ctx, exits)
		})
	}
	return g.Wait()
}

// Logs implements runtime.Runtime.
func (s *several) Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error) {
	return s.of(k).Logs(ctx, k, tail, follow)
}

// Close implements runtime.Runtime.
func (s *several) Close() error {
	var all []error
	for _, m := range s.members {
		all = append(all, m.Close())
	}
	return errors.Join(all...)
}

// ReadLogs implements runtime.LogReader.
func (s *several) ReadLogs(ctx context.Context, k wire.Key, q logs.Query, follow bool) (io.ReadCloser, error) {
	if r, ok := s.of(k).(runtime.LogReader); ok {
		return r.ReadLogs(ctx, k, q, follow)
	}
	return nil, errNot(k, "keeps no times of lines")
}

// CgroupOf implements runtime.Guarded.
func (s *several) CgroupOf(ctx context.Context, k wire.Key) (string, error) {
	if g, ok := s.of(k).(runtime.Guarded); ok {
		return g.CgroupOf(ctx, k)
	}
	return "", errNot(k, "has no control groups")
}

// Housekeep implements runtime.Housekeeper.
func (s *several) Housekeep(ctx context.Context) error {
	var all []error
	for _, m := range s.members {
		if h, ok := m.Runtime.(runtime.Housekeeper); ok {
			all = append(all, h.Housekeep(ctx))
		}
	}
	return errors.Join(all...)
}

// Namespace implements runtime.Namespaced. A workload of a runtime without network namespaces has none.
func (s *several) Namespace(ctx context.Context, k wire.Key) (string, runtime.Workload, error) {
	rt := s.of(k)
	if n, ok := rt.(runtime.Namespaced); ok {
		return n.Namespace(ctx, k)
	}
	all, err := rt.List(ctx)
	if err != nil {
		return "", runtime.Workload{}, err
	}
	for _, st := range all {
		if st.Key == k {
			return "", runtime.Workload{Key: k, Attempt: st.Attempt, Spec: st.Spec, Devices: st.Devices}, nil
		}
	}
	return "", runtime.Workload{}, fmt.Errorf("find the network namespace of %s: %w", k, api.ErrNotFound)
}

// Exec implements runtime.Executor.
func (s *several) Exec(ctx context.Context, k wire.Key, p runtime.Process) (runtime.Running, error) {
	if x, ok := s.of(k).(runtime.Executor); ok {
		return x.Exec(ctx, k, p)
	}
	return nil, errNot(k, "cannot run further processes in it")
}

// Purge implements runtime.Purger.
func (s *several) Purge(ctx context.Context) error {
	var all []error
	for _, m := range s.members {
		if p, ok := m.Runtime.(runtime.Purger); ok {
			all = append(all, p.Purge(ctx))
		}
	}
	return errors.Join(all...)
}

// Signal implements runtime.Filer.
func (s containers) Signal(ctx context.Context, k wire.Key, sig syscall.Signal) error {
	if f, ok := s.of(k).(runtime.Filer); ok {
		return f.Signal(ctx, k, sig)
	}
	return errNot(k, "provides no files")
}

// Attach implements runtime.Attacher.
func (s containers) Attach(ctx context.Context, k wire.Key, terminal bool) (runtime.Input, error) {
	if a, ok := s.of(k).(runtime.Attacher); ok {
		return a.Attach(ctx, k, terminal)
	}
	return nil, errNot(k, "has no input")
}
