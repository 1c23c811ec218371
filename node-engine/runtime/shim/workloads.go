// Package shim runs each workload of a runtime as a process below a shim, which is a copy of the node
// engine's program (package helper). Workloads outlive the engine, and their exit codes are known. The
// state of a workload is in files:
//
//	<state>/w/<id>/workload.json   what to run, written by Put
//	<state>/w/<id>/run.json        which processes run, written by the shim
//	<state>/w/<id>/exit.json       how it ended, written by the shim
//	<state>/logs/<id>.log          its output
//
// A runtime embeds Workloads and adds what to run.
//
//	shim.Main("treeline-shim", start)                   // first in main
//	w, err := shim.Open(shim.Config{Name: "treeline-shim", StateDir: dir, CgroupParent: "/treeline/process"})
//	err = w.Put(workload, func(dir string) (shim.Plan, error) { … })
package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/helper"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
)

const (
	// Timeout is how long a shim may take to save an exit.
	Timeout         = 10 * time.Second
	unknownExitCode = 255 // of a workload whose shim was killed
)

// Config configures the workloads of one runtime.
type Config struct {
	Name         string // of the shims, as given to Main
	StateDir     string
	CgroupParent string
	LogLimit     int64 // bytes of each workload's log
	// TermShim sends SIGTERM to the shim, whose start function passes it on, and not to the workload.
	TermShim bool
	// Release, if not nil, releases what a workload has besides its files and its control group. It
	// may be repeated.
	Release func(id string) error
}

// Workloads are the workloads of a runtime. It implements the methods of runtime.Runtime but Info and
// Create, and runtime.LogReader, runtime.Guarded and runtime.Housekeeper.
type Workloads struct {
	cfg     Config
	cg      cgroup.FS
	root    *os.Root // <state>/w
	logs    *logs.Dir
	boot    string
	ctx     context.Context // ends with Close
	end     context.CancelFunc
	follows sync.WaitGroup

	mu       sync.Mutex // guards watchers
	watchers map[*watcher]struct{}
}

// Open opens the state and adopts the workloads that an earlier engine started.
func Open(cfg Config) (*Workloads, error) {
	if cfg.StateDir == "" {
		return nil, fmt.Errorf("no state directory is given: %w", api.ErrInvalid)
	}
	cg, err := cgroup.Mounted()
	if err != nil {
		return nil, err
	}
	boot, err := helper.BootID()
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(cfg.StateDir, "w")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	l, err := logs.Open(filepath.Join(cfg.StateDir, "logs"), cfg.LogLimit)
	if err != nil {
		return nil, errors.Join(err, root.Close())
	}
	r := &Workloads{cfg: cfg, cg: cg, root: root, logs: l, boot: boot, watchers: make(map[*watcher]struct{})}
	r.ctx, r.end = context.WithCancel(context.Background())
	if err := r.adopt(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close stops watching the workloads and closes all files. The workloads keep running.
func (r *Workloads) Close() error {
	r.end()
	r.follows.Wait()
	return errors.Join(r.logs.Close(), r.root.Close())
}

// V2 reports whether the machine has control groups of version 2 only.
func (r *Workloads) V2() bool { return r.cg.V2() }

// Put creates a workload as runtime.Runtime's Create does. If there is something to create, it calls check
// before it changes anything, and then plan, which may write files to the workload's directory.
func (r *Workloads) Put(w runtime.Workload, check func() error, plan func(dir string) (Plan, error)) error {
	return failure("create", w.Key, r.put(w, check, plan))
}

func (r *Workloads) put(w runtime.Workload, check func() error, plan func(dir string) (Plan, error)) error {
	id := runtime.ID(w.Key)
	old, err := r.status(id)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case old.Attempt == w.Attempt && slices.Equal(old.Devices, w.Devices):
		return nil
	case old.Phase == wire.WorkloadRunning:
		return fmt.Errorf("attempt %d still runs: %w", old.Attempt, api.ErrConflict)
	}
	if err := check(); err != nil {
		return err
	}
	if err := r.remove(id); err != nil {
		return err
	}
	if old.Attempt != w.Attempt {
		if err := r.logs.Next(id); err != nil {
			return err
		}
	}
	path, err := r.logs.Create(id)
	if err != nil {
		return err
	}
	if err := r.root.Mkdir(id, 0o700); err != nil {
		return err
	}
	p, err := plan(filepath.Join(r.cfg.StateDir, "w", id))
	if err != nil {
		return err
	}
	p.Key, p.Attempt, p.Spec, p.Devices, p.Addresses = w.Key, w.Attempt, w.Spec, w.Devices, w.Addresses
	p.Boot, p.Log, p.Cgroup = r.boot, path, r.Group(id).Path()
	return helper.WriteJSON(r.root, filepath.Join(id, workloadFile), p)
}

// Start implements runtime.Runtime.
func (r *Workloads) Start(ctx context.Context, k wire.Key) error {
	return failure("start", k, r.start(ctx, runtime.ID(k)))
}

// Stop implements runtime.Runtime.
func (r *Workloads) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	return failure("stop", k, r.stop(ctx, runtime.ID(k), grace))
}

// Kill implements runtime.Runtime.
func (r *Workloads) Kill(ctx context.Context, k wire.Key, grace time.Duration) error {
	return failure("kill", k, r.endProcesses(ctx, runtime.ID(k), grace))
}

// failure wraps err, if it is not nil, in a *runtime.Error.
func failure(action string, k wire.Key, err error) error {
	if err == nil {
		return nil
	}
	return runtime.Errorf(runtime.Reason(err), "%s %s: %w", action, k, err)
}

func (r *Workloads) start(ctx context.Context, id string) error {
	st, err := r.status(id)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("workload does not exist: %w", api.ErrNotFound)
	}
	if err != nil || st.Phase != wire.WorkloadCreated {
		return err
	}
	err = r.launch(ctx, id)
	return errors.Join(err, r.follow(id)) // even after a timeout the shim may run
}

func (r *Workloads) stop(ctx context.Context, id string, grace time.Duration) error {
	if err := r.endProcesses(ctx, id, grace); err != nil {
		return err
	}
	return errors.Join(r.remove(id), r.logs.Remove(id))
}

// endProcesses ends the workload's processes, and returns when its exit is saved.
func (r *Workloads) endProcesses(ctx context.Context, id string, grace time.Duration) error {
	st, err := r.state(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if grace > 0 && st.run.Main.alive() {
		to := st.run.Main
		if r.cfg.TermShim {
			to = st.run.Shim
		}
		if to.alive() {
			if err := syscall.Kill(to.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
				return err
			}
		}
		term, cancel := context.WithTimeout(ctx, grace)
		_ = st.run.Main.wait(term)
		cancel()
	}
	if err := r.Group(id).Kill(ctx); err != nil {
		return err
	}
	save, cancel := context.WithTimeout(ctx, Timeout)
	defer cancel()
	if err := st.run.Shim.wait(save); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_ = syscall.Kill(st.run.Shim.PID, syscall.SIGKILL)
	}
	return nil
}

// remove removes everything but the log of a workload that does not run.
func (r *Workloads) remove(id string) error {
	if err := r.Group(id).Remove(); err != nil {
		return err
	}
	if r.cfg.Release != nil {
		if err := r.cfg.Release(id); err != nil {
			return err
		}
	}
	return r.root.RemoveAll(id)
}

// List implements runtime.Runtime.
func (r *Workloads) List(context.Context) ([]runtime.Status, error) {
	dirs, err := r.dirs()
	if err != nil {
		return nil, fmt.Errorf("list workloads: %w", err)
	}
	var out []runtime.Status
	for _, d := range dirs {
		st, err := r.status(d.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being created or removed
		}
		if err != nil {
			return nil, fmt.Errorf("list workloads: %w", err)
		}
		out = append(out, st)
	}
	return out, nil
}

// dirs returns the directories of all workloads, sorted by id.
func (r *Workloads) dirs() ([]fs.DirEntry, error) { return fs.ReadDir(r.root.FS(), ".") }

// Logs implements runtime.Runtime.
func (r *Workloads) Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error) {
	return r.ReadLogs(ctx, k, logs.Query{Tail: tail}, follow)
}

// ReadLogs implements runtime.LogReader.
func (r *Workloads) ReadLogs(ctx context.Context, k wire.Key, q logs.Query, follow bool) (io.ReadCloser, error) {
	id := runtime.ID(k)
	if !follow {
		return r.logs.Read(ctx, id, q)
	}
	return r.logs.Follow(ctx, id, q, func(ctx context.Context) {
		if st, err := r.state(id); err == nil {
			_ = st.run.Shim.wait(ctx)
			_ = st.run.Main.wait(ctx)
		}
	})
}

// CgroupOf implements runtime.Guarded.
func (r *Workloads) CgroupOf(_ context.Context, k wire.Key) (string, error) {
	id := runtime.ID(k)
	if _, err := r.root.Stat(id); err != nil {
		return "", fmt.Errorf("cgroup of %s: %w", k, api.ErrNotFound)
	}
	return r.Group(id).Path(), nil
}

// Housekeep implements runtime.Housekeeper: it trims the logs.
func (r *Workloads) Housekeep(context.Context) error { return r.logs.Trim() }

// Group returns the control group of a workload.
func (r *Workloads) Group(id string) cgroup.Group {
	return r.cg.Group(filepath.Join(r.cfg.CgroupParent, id))
}

// Has reports whether the workload exists.
func (r *Workloads) Has(k wire.Key) bool {
	_, err := r.root.Stat(runtime.ID(k))
	return err == nil
}

// Find returns the plan of a workload, and its phase. It fails with fs.ErrNotExist if it does not exist.
func (r *Workloads) Find(id string) (Plan, wire.WorkloadPhase, error) {
	s, err := r.state(id)
	if err != nil {
		return Plan{}, "", err
	}
	st, err := r.status(id)
	if err == nil && st.Phase == wire.WorkloadRunning && !s.run.Main.alive() {
		st.Phase = wire.WorkloadExited
	}
	return s.plan, st.Phase, err
}
