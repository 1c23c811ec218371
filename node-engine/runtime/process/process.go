// Package process runs workloads as plain processes, each in its own cgroup, on hosts without
// containerd. It implements `virtualization: process`. Its workloads share the host's file
// system and network. `code` is the absolute path of an executable in a directory that the
// node's operator allows, and `cmd` its arguments. It runs as an unprivileged user and cannot
// gain privileges. It finds its devices in TREELINE_DEVICES; only file permissions keep it
// from using others.
//
// A shim (package shim) runs between the engine and each workload, so that workloads outlive
// the engine and their exit codes are known. <state>/execs/<id>.<exec> stands for a process that Exec
// runs in a workload.
package process

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/execs"
	"github.com/treeline-edge/treeline/node-engine/runtime/shim"
)

// Virtualization is the value of the SLA's field that this runtime implements.
const Virtualization = "process"

const nobody = 65534

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

// Runtime is a runtime.Runtime.
type Runtime struct {
	*shim.Workloads
	cfg     Config
	execs   *execs.Dir
	ctx     context.Context // ends with Close
	end     context.CancelFunc
	running sync.WaitGroup // execs
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
	w, err := shim.Open(shim.Config{Name: shimName, StateDir: cfg.StateDir, CgroupParent: cfg.CgroupParent, LogLimit: cfg.LogLimit})
	if err != nil {
		return nil, err
	}
	x, err := execs.Open(filepath.Join(cfg.StateDir, "execs"))
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	r := &Runtime{Workloads: w, cfg: cfg, execs: x}
	r.ctx, r.end = context.WithCancel(context.Background())
	if err := r.endExecs(); err != nil {
		return nil, errors.Join(err, r.Close())
	}
	return r, nil
}

// Close ends all execs, stops watching the workloads and closes all files. The workloads keep
// running.
func (r *Runtime) Close() error {
	r.end()
	r.running.Wait()
	return errors.Join(r.Workloads.Close(), r.execs.Close())
}

// Info implements runtime.Runtime.
func (r *Runtime) Info(context.Context) (runtime.Info, error) {
	version := "processes on cgroup v1"
	if r.V2() {
		version = "processes on cgroup v2"
	}
	return runtime.Info{Version: version, Runtimes: []string{Virtualization}}, nil
}

// Create implements runtime.Runtime.
func (r *Runtime) Create(_ context.Context, w runtime.Workload) error {
	check := func() error {
		if len(w.Mounts) > 0 || w.Layer != "" {
			return runtime.Errorf(api.ReasonNoRuntime, "volumes are not supported for processes")
		}
		return r.check(w.Spec)
	}
	return r.Put(w, check, func(string) (shim.Plan, error) {
		memory, cpu := runtime.LimitsOf(w.Spec)
		return shim.Plan{
			Limits: cgroup.Limits{MemoryMB: memory, MilliCPU: cpu, PIDs: r.cfg.PIDs},
			UID:    r.cfg.UID, GID: r.cfg.GID,
			Args: append([]string{w.Spec.Code}, w.Spec.Cmd...),
			Env:  slices.Concat([]string{"PATH=/usr/local/bin:/usr/bin:/bin"}, w.Spec.Environment, w.Env()),
		}, nil
	})
}

// check rejects a service that the runtime does not support or the operator does not allow.
func (r *Runtime) check(m api.Microservice) error {
	if m.Virtualization != Virtualization {
		return runtime.Errorf(api.ReasonNoRuntime, "virtualization %q is not available, want %q", m.Virtualization, Virtualization)
	}
	if m.Stdin || m.TTY {
		return runtime.Errorf(api.ReasonNoRuntime, "plain processes have no stdin and no tty; use virtualization: container")
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

const shimName = "treeline-shim"

// ShimMain runs a shim and exits, if this process was started as one. Programs that use the
// runtime call it first in main.
func ShimMain() { shim.Main(shimName, start) }

func start(p shim.Plan, _ string, group cgroup.Group) (*exec.Cmd, shim.ExitCodeOf, error) {
	cmd, log, err := p.Command()
	if err != nil {
		return nil, nil, err
	}
	defer log.Close()
	return cmd, nil, shim.Launch(cmd, group, nil)
}
