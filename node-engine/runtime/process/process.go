// Package process runs workloads as plain processes, each in its own cgroup, on hosts without
// containerd. It implements `virtualization: process`. Its workloads share the host's file
// system and network. `code` is the absolute path of an executable in a directory that the
// node's operator allows, and `cmd` its arguments. It runs as an unprivileged user and cannot
// gain privileges. It finds its devices in TREELINE_DEVICES; only file permissions keep it
// from using others.
//
// A shim (see ShimMain) runs between the engine and each workload, so that workloads outlive
// the engine and their exit codes are known. The state of a workload is in files:
//
//	<state>/w/<id>/workload.json   what to run, written by Create
//	<state>/w/<id>/run.json        which processes run, written by the shim
//	<state>/w/<id>/exit.json       how it ended, written by the shim
//	<state>/logs/<id>.log          its output
//	<state>/execs/<id>.<exec>      a process that Exec runs in it
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/execs"
	"github.com/treeline-edge/treeline/node-engine/runtime/helper"
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
)

// Virtualization is the value of the SLA's field that this runtime implements.
const Virtualization = "process"

const (
	nobody          = 65534
	shimTimeout     = 10 * time.Second // for a shim to save an exit
	unknownExitCode = 255              // of a workload whose shim was killed
)

// Options are the settings of the node's operator. Zero values mean the defaults.
type Options struct {
	Allow        []string `yaml:"allow" usage:"directories below which programs may be; empty: no program may run"`
	CgroupParent string   `yaml:"cgroup_parent" usage:"cgroup of all workloads, a path of its own for each engine on the machine"`
	UID          int      `yaml:"uid" usage:"user that workloads run as, never root; 0: nobody"`
	GID          int      `yaml:"gid" usage:"group that workloads run as; 0: nogroup"`
}

// Config configures the runtime. Zero values mean the defaults.
type Config struct {
	Options
	StateDir string // required
	LogLimit int64  // bytes of each workload's log; default 16 MiB
	PIDs     int64  // processes and threads of a workload; default 512
}

func (c Config) withDefaults() Config {
	c.CgroupParent = cmp.Or(c.CgroupParent, "/treeline/process")
	c.UID, c.GID = cmp.Or(c.UID, nobody), cmp.Or(c.GID, nobody)
	c.LogLimit, c.PIDs = cmp.Or(c.LogLimit, 16<<20), cmp.Or(c.PIDs, 512)
	return c
}

type Runtime struct {
	cfg     Config
	cg      cgroup.FS
	root    *os.Root // <state>/w
	logs    *logs.Dir
	execs   *execs.Dir
	boot    string
	ctx     context.Context // ends with Close
	end     context.CancelFunc
	follows sync.WaitGroup

	mu       sync.Mutex // guards watchers
	watchers map[*watcher]struct{}
}

// New creates the runtime and adopts the workloads that an earlier one started.
func New(cfg Config) (*Runtime, error) {
	r, err := open(cfg.withDefaults())
	if err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	return r, nil
}

func open(cfg Config) (*Runtime, error) {
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
	x, err := execs.Open(filepath.Join(cfg.StateDir, "execs"))
	if err != nil {
		return nil, errors.Join(err, l.Close(), root.Close())
	}
	r := &Runtime{cfg: cfg, cg: cg, root: root, logs: l, execs: x, boot: boot, watchers: make(map[*watcher]struct{})}
	r.ctx, r.end = context.WithCancel(context.Background())
	if err := errors.Join(r.endExecs(), r.adopt()); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close ends all execs, stops watching the workloads and closes all files. The workloads keep
// running.
func (r *Runtime) Close() error {
	r.end()
	r.follows.Wait()
	return errors.Join(r.logs.Close(), r.execs.Close(), r.root.Close())
}

func (r *Runtime) Info(context.Context) (runtime.Info, error) {
	version := "processes on cgroup v1"
	if r.cg.V2() {
		version = "processes on cgroup v2"
	}
	return runtime.Info{Version: version, Runtimes: []string{Virtualization}}, nil
}

func (r *Runtime) Create(_ context.Context, w runtime.Workload) error {
	return failure("create", w.Key, r.create(w))
}

func (r *Runtime) Start(ctx context.Context, k wire.Key) error {
	return failure("start", k, r.start(ctx, runtime.ID(k)))
}

func (r *Runtime) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	return failure("stop", k, r.stop(ctx, runtime.ID(k), grace))
}

// Kill implements runtime.Runtime.
func (r *Runtime) Kill(ctx context.Context, k wire.Key, grace time.Duration) error {
	return failure("kill", k, r.endProcesses(ctx, runtime.ID(k), grace))
}

// failure wraps err, if it is not nil, in a *runtime.Error.
func failure(action string, k wire.Key, err error) error {
	if err == nil {
		return nil
	}
	return runtime.Errorf(runtime.Reason(err), "%s %s: %w", action, k, err)
}

func (r *Runtime) create(w runtime.Workload) error {
	if w.Spec.Stdin || w.Spec.TTY {
		return runtime.Errorf(api.ReasonNoRuntime, "plain processes have no stdin and no tty; use virtualization: container")
	}
	if len(w.Mounts) > 0 || w.Layer != "" {
		return runtime.Errorf(api.ReasonNoRuntime, "volumes are not supported for processes")
	}
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
	if err := r.check(w.Spec); err != nil {
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
	memory, cpu := runtime.LimitsOf(w.Spec)
	return helper.WriteJSON(r.root, filepath.Join(id, workloadFile), plan{
		Key: w.Key, Attempt: w.Attempt, Spec: w.Spec, Devices: w.Devices, Boot: r.boot, Log: path,
		Cgroup: r.group(id).Path(),
		Limits: cgroup.Limits{MemoryMB: memory, MilliCPU: cpu, PIDs: r.cfg.PIDs},
		UID:    r.cfg.UID, GID: r.cfg.GID,
		Args: append([]string{w.Spec.Code}, w.Spec.Cmd...),
		Env:  slices.Concat([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, w.Spec.Environment, w.Env()),
	})
}

// check rejects a service that the runtime does not support or the operator does not allow.
func (r *Runtime) check(m api.Microservice) error {
	if m.Virtualization != Virtualization {
		return runtime.Errorf(api.ReasonNoRuntime, "virtualization %q is not available, want %q", m.Virtualization, Virtualization)
	}
	if m.Privileged {
		return runtime.Errorf(api.ReasonPrivilege, "plain processes cannot run privileged")
	}
	dir, rel := r.allowed(m.Code)
	if dir == "" {
		return runtime.Errorf(api.ReasonPrivilege, "code %q is not in a directory that this node's operator allows (%s)",
			m.Code, strings.Join(r.cfg.Allow, ", "))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return runtime.Errorf(api.ReasonImageNotFound, "allowed directory: %v", err)
	}
	defer root.Close()
	info, err := root.Stat(rel) // fails for links that lead out of the directory
	if err != nil {
		return runtime.Errorf(api.ReasonImageNotFound, "code %q: %v", m.Code, err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return runtime.Errorf(api.ReasonStartFailed, "code %q is no executable file", m.Code)
	}
	return nil
}

// allowed returns the allowed directory that contains path, and the path in it; "" if there is none.
func (r *Runtime) allowed(path string) (dir, rel string) {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return "", ""
	}
	for _, d := range r.cfg.Allow {
		rel, err := filepath.Rel(d, path)
		if err == nil && rel != "." && filepath.IsLocal(rel) {
			return d, rel
		}
	}
	return "", ""
}

func (r *Runtime) start(ctx context.Context, id string) error {
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

func (r *Runtime) stop(ctx context.Context, id string, grace time.Duration) error {
	if err := r.endProcesses(ctx, id, grace); err != nil {
		return err
	}
	return errors.Join(r.remove(id), r.logs.Remove(id))
}

// endProcesses ends the workload's processes, and returns when its exit is saved.
func (r *Runtime) endProcesses(ctx context.Context, id string, grace time.Duration) error {
	st, err := r.state(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if grace > 0 && st.run.Main.alive() {
		if err := syscall.Kill(st.run.Main.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		term, cancel := context.WithTimeout(ctx, grace)
		_ = st.run.Main.wait(term)
		cancel()
	}
	if err := r.group(id).Kill(ctx); err != nil {
		return err
	}
	save, cancel := context.WithTimeout(ctx, shimTimeout)
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
func (r *Runtime) remove(id string) error {
	if err := r.group(id).Remove(); err != nil {
		return err
	}
	return r.root.RemoveAll(id)
}

func (r *Runtime) List(context.Context) ([]runtime.Status, error) {
	dirs, err := r.dirs()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []runtime.Status
	for _, d := range dirs {
		st, err := r.status(d.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue // it is being created or removed
		}
		if err != nil {
			return nil, fmt.Errorf("list processes: %w", err)
		}
		out = append(out, st)
	}
	return out, nil
}

// dirs returns the directories of all workloads, sorted by id.
func (r *Runtime) dirs() ([]fs.DirEntry, error) { return fs.ReadDir(r.root.FS(), ".") }

func (r *Runtime) Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error) {
	return r.ReadLogs(ctx, k, logs.Query{Tail: tail}, follow)
}

// ReadLogs implements runtime.LogReader.
func (r *Runtime) ReadLogs(ctx context.Context, k wire.Key, q logs.Query, follow bool) (io.ReadCloser, error) {
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

func (r *Runtime) CgroupOf(_ context.Context, k wire.Key) (string, error) {
	id := runtime.ID(k)
	if _, err := r.root.Stat(id); err != nil {
		return "", fmt.Errorf("cgroup of %s: %w", k, api.ErrNotFound)
	}
	return r.group(id).Path(), nil
}

// Housekeep implements runtime.Housekeeper: it trims the logs.
func (r *Runtime) Housekeep(context.Context) error { return r.logs.Trim() }

func (r *Runtime) group(id string) cgroup.Group {
	return r.cg.Group(filepath.Join(r.cfg.CgroupParent, id))
}
