// Package process runs workloads as plain processes, each in its own cgroup, on
// hosts without containerd. It offers `virtualization: process` and nothing
// else: what it runs shares the host's file system and network and is never
// passed off as a container. `code` is the absolute path of an executable below
// a directory that the node's operator allows, `cmd` its arguments; it runs as an
// unprivileged user and can gain no rights.
// Its devices are those of the machine: which of them it has to itself it reads
// in TREELINE_DEVICES, and nothing keeps it from the others but their permissions.
//
// A small process of our own binary stands between the engine and each workload
// (see ShimMain), so that workloads outlive the engine and their exit codes are
// known however they end. Everything known of a workload is in files:
//
//	<state>/w/<id>/workload.json   what to run, written by Create
//	<state>/w/<id>/run.json        which processes run, written by the shim
//	<state>/w/<id>/exit.json       how it ended, written by the shim
//	<state>/logs/<id>.log          what it wrote
package process

import (
	"context"
	"encoding/json"
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
	"github.com/treeline-edge/treeline/node-engine/runtime/logs"
)

// Virtualization is the value of the SLA field that this runtime takes.
const Virtualization = "process"

const (
	defaultLogLimit = 16 << 20
	defaultPIDs     = 512
	nobody          = 65534
	shimGrace       = 10 * time.Second // for a shim to write down an exit that has happened
	unknownExit     = 255              // a process whose end nobody saw
)

// Config says what the node's operator allows. Zero values mean the defaults.
type Config struct {
	StateDir     string   // must be given
	Allow        []string // directories that `code` may lie below; none allows nothing
	CgroupParent string   // default "/treeline/process"; a path of its own for each engine on the machine
	UID, GID     int      // whom workloads run as; 0 means 65534, nobody: never root
	LogLimit     int64    // bytes kept of each workload's output; default 16 MiB
	PIDs         int64    // processes and threads of a workload; default 512
	Exe          string   // the program that calls ShimMain; default this one
}

// Runtime is a runtime.Runtime of plain processes.
type Runtime struct {
	cfg   Config
	cg    cgroup.FS
	root  *os.Root // <state>/w
	logs  *logs.Dir
	boot  string
	ctx   context.Context // ends with Close
	end   context.CancelFunc
	lives sync.WaitGroup

	mu       sync.Mutex // guards watchers
	watchers map[*watcher]struct{}
}

// New makes the runtime and adopts what an earlier one left running.
func New(cfg Config) (*Runtime, error) {
	if cfg.StateDir == "" {
		return nil, fmt.Errorf("process runtime: no state directory is given: %w", api.ErrInvalid)
	}
	setDefaults(&cfg)
	if cfg.Exe == "" {
		exe, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("process runtime: find my own program: %w", err)
		}
		cfg.Exe = exe
	}
	cg, err := cgroup.Mounted()
	if err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	boot, err := bootID()
	if err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	dir := filepath.Join(cfg.StateDir, "w")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	l, err := logs.Open(filepath.Join(cfg.StateDir, "logs"), cfg.LogLimit)
	if err != nil {
		root.Close()
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	r := &Runtime{cfg: cfg, cg: cg, root: root, logs: l, boot: boot, watchers: make(map[*watcher]struct{})}
	r.ctx, r.end = context.WithCancel(context.Background())
	if err := r.adopt(); err != nil {
		r.Close()
		return nil, fmt.Errorf("process runtime: %w", err)
	}
	return r, nil
}

func setDefaults(cfg *Config) {
	if cfg.CgroupParent == "" {
		cfg.CgroupParent = "/treeline/process"
	}
	if cfg.UID == 0 {
		cfg.UID = nobody
	}
	if cfg.GID == 0 {
		cfg.GID = nobody
	}
	if cfg.LogLimit == 0 {
		cfg.LogLimit = defaultLogLimit
	}
	if cfg.PIDs == 0 {
		cfg.PIDs = defaultPIDs
	}
}

// Close ends what the engine does here; the workloads run on.
func (r *Runtime) Close() error {
	r.end()
	r.lives.Wait()
	return errors.Join(r.root.Close(), r.logs.Close())
}

// Info implements runtime.Runtime.
func (r *Runtime) Info(context.Context) (runtime.Info, error) {
	version := "processes on cgroup v1"
	if r.cg.V2() {
		version = "processes on cgroup v2"
	}
	return runtime.Info{Version: version, Runtimes: []string{Virtualization}}, nil
}

// Create implements runtime.Runtime.
func (r *Runtime) Create(_ context.Context, w runtime.Workload) error {
	if err := r.create(w); err != nil {
		return reasoned(fmt.Errorf("create %s: %w", w.Key, err))
	}
	return nil
}

func (r *Runtime) create(w runtime.Workload) error {
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
	path, err := r.logs.Create(id)
	if err != nil {
		return err
	}
	if err := r.root.Mkdir(id, 0o700); err != nil {
		return err
	}
	memory, cpu := runtime.LimitsOf(w.Spec)
	return r.writeJSON(id, workloadFile, plan{
		Key: w.Key, Attempt: w.Attempt, Spec: w.Spec, Devices: w.Devices, Boot: r.boot, Log: path,
		Cgroup: r.group(id).Path(),
		Limits: cgroup.Limits{MemoryMB: memory, MilliCPU: cpu, PIDs: r.cfg.PIDs},
		UID:    r.cfg.UID, GID: r.cfg.GID,
		Args: append([]string{w.Spec.Code}, w.Spec.Cmd...),
		Env:  slices.Concat([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, w.Spec.Environment, w.Env()),
	})
}

// check refuses what cannot or may not run here.
func (r *Runtime) check(m api.Microservice) error {
	if m.Virtualization != Virtualization {
		return because(api.ReasonNoRuntime, "this runtime takes virtualization %q, not %q", Virtualization, m.Virtualization)
	}
	if m.Privileged {
		return because(api.ReasonPrivilege, "plain processes never run privileged")
	}
	dir := r.allowed(m.Code)
	if dir == "" {
		return because(api.ReasonPrivilege, "code %q does not lie below a directory that this node's operator allows (%s)",
			m.Code, strings.Join(r.cfg.Allow, ", "))
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return because(api.ReasonImageNotFound, "allowed directory: %v", err)
	}
	defer root.Close()
	rel, _ := filepath.Rel(dir, m.Code)
	info, err := root.Stat(rel) // refuses links that lead out
	if err != nil {
		return because(api.ReasonImageNotFound, "code %q: %v", m.Code, err)
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return because(api.ReasonStartFailed, "code %q is no executable file", m.Code)
	}
	return nil
}

// allowed is the allowed directory that path lies below, or "".
func (r *Runtime) allowed(path string) string {
	if !filepath.IsAbs(path) || filepath.Clean(path) != path {
		return ""
	}
	for _, d := range r.cfg.Allow {
		rel, err := filepath.Rel(d, path)
		if err == nil && rel != "." && filepath.IsLocal(rel) {
			return d
		}
	}
	return ""
}

// Start implements runtime.Runtime.
func (r *Runtime) Start(ctx context.Context, k wire.Key) error {
	if err := r.start(ctx, runtime.ID(k)); err != nil {
		return reasoned(fmt.Errorf("start %s: %w", k, err))
	}
	return nil
}

func (r *Runtime) start(ctx context.Context, id string) error {
	st, err := r.status(id)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("it was never created: %w", api.ErrNotFound)
	}
	if err != nil || st.Phase != wire.WorkloadCreated {
		return err // one that runs or has exited has been started
	}
	err = r.launch(ctx, id)
	return errors.Join(err, r.follow(id)) // a shim that we gave up on may run yet
}

// Stop implements runtime.Runtime.
func (r *Runtime) Stop(ctx context.Context, k wire.Key, grace time.Duration) error {
	if err := r.stop(ctx, runtime.ID(k), grace); err != nil {
		return reasoned(fmt.Errorf("stop %s: %w", k, err))
	}
	return nil
}

func (r *Runtime) stop(ctx context.Context, id string, grace time.Duration) error {
	st, err := r.state(id)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if grace > 0 && st.run.Main.alive() {
		if err := syscall.Kill(st.run.Main.PID, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		gentle, cancel := context.WithTimeout(ctx, grace)
		_ = st.run.Main.wait(gentle)
		cancel()
	}
	if err := r.group(id).Kill(ctx); err != nil {
		return err
	}
	patient, cancel := context.WithTimeout(ctx, shimGrace)
	defer cancel()
	if err := st.run.Shim.wait(patient); err != nil {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		_ = syscall.Kill(st.run.Shim.PID, syscall.SIGKILL)
	}
	return errors.Join(r.remove(id), r.logs.Remove(id))
}

// remove removes what is left of a workload that does not run, but for its log.
func (r *Runtime) remove(id string) error {
	if err := r.group(id).Remove(); err != nil {
		return err
	}
	return r.root.RemoveAll(id)
}

// List implements runtime.Runtime.
func (r *Runtime) List(context.Context) ([]runtime.Status, error) {
	ids, err := r.ids()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var out []runtime.Status
	for _, id := range ids {
		st, err := r.status(id)
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

// Logs implements runtime.Runtime.
func (r *Runtime) Logs(ctx context.Context, k wire.Key, tail int, follow bool) (io.ReadCloser, error) {
	id := runtime.ID(k)
	if !follow {
		return r.logs.Read(ctx, id, tail, nil)
	}
	ended := make(chan struct{})
	rd, err := r.logs.Read(ctx, id, tail, ended)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	r.lives.Go(func() {
		defer close(ended)
		defer cancel()
		stop := context.AfterFunc(r.ctx, cancel)
		defer stop()
		if st, err := r.state(id); err == nil {
			_ = st.run.Shim.wait(ctx)
			_ = st.run.Main.wait(ctx)
		}
	})
	return &follower{ReadCloser: rd, cancel: cancel}, nil
}

// follower also ends the wait for the workload when its reader is closed.
type follower struct {
	io.ReadCloser
	cancel context.CancelFunc
}

func (f *follower) Close() error {
	f.cancel()
	return f.ReadCloser.Close()
}

// CgroupOf implements runtime.Guarded.
func (r *Runtime) CgroupOf(_ context.Context, k wire.Key) (runtime.Target, error) {
	id := runtime.ID(k)
	if _, err := r.root.Stat(id); err != nil {
		return runtime.Target{}, fmt.Errorf("cgroup of %s: %w", k, api.ErrNotFound)
	}
	return runtime.Target{Cgroup: r.group(id).Path()}, nil
}

// Housekeep implements runtime.Housekeeper: it bounds the logs.
func (r *Runtime) Housekeep(context.Context) error { return r.logs.Trim() }

func (r *Runtime) group(id string) cgroup.Group {
	return r.cg.Group(filepath.Join(r.cfg.CgroupParent, id))
}

func (r *Runtime) ids() ([]string, error) {
	d, err := r.root.Open(".")
	if err != nil {
		return nil, err
	}
	defer d.Close()
	ids, err := d.Readdirnames(-1)
	slices.Sort(ids)
	return ids, err
}

func (r *Runtime) writeJSON(id, name string, v any) error {
	dir, err := r.root.OpenRoot(id)
	if err != nil {
		return err
	}
	defer dir.Close()
	return writeJSON(dir, name, v)
}

// writeJSON replaces a file in one step, so that nobody reads half of it.
func writeJSON(dir *os.Root, name string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := dir.WriteFile(name+".new", b, 0o600); err != nil {
		return err
	}
	return dir.Rename(name+".new", name)
}

func because(reason api.Reason, format string, args ...any) error {
	return &runtime.Error{Reason: reason, Err: fmt.Errorf(format, args...)}
}

// reasoned gives err the reason that it carries inside, or finds one.
func reasoned(err error) error {
	reason := runtime.Reason(err)
	if errors.Is(err, syscall.ENOSPC) {
		reason = api.ReasonDiskFull
	}
	return &runtime.Error{Reason: reason, Err: err}
}
