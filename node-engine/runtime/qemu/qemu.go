// Package qemu runs workloads as virtual machines. It implements `virtualization: microvm`, Linux with an
// initial file system on QEMU's machine microvm, and `virtualization: unikernel` on its machine q35, which
// has PCI. Both boot a kernel out of an image; docs/how-to/virtual-machines.md describes the images.
//
// QEMU runs as an unprivileged user, in a sandbox, in the network namespace and the control group of its
// workload, below a shim (package shim). Its log is the guest's serial console. What belongs to a workload
// besides its files in package shim:
//
//	<state>/images/<hash>              kernel, initrd and image.json of an image
//	<state>/w/<id>/kernel, initrd      links to those of its image
//	<state>/w/<id>/machine.json        what the shim boots
//	/run/netns/treeline-<engine>-<id>  its network namespace
package qemu

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/shim"
)

// Virtualizations are the values of the SLA's field that this runtime implements.
var Virtualizations = []string{api.MicroVM, api.Unikernel}

const (
	nobody = 65534
	// overheadMB is the part of a workload's memory that QEMU itself needs, besides copies of the kernel and
	// the initial file system. The guest has the rest.
	overheadMB = 56
	minGuestMB = 16
	maxPIDs    = 256 // threads of QEMU
)

// Options are the settings of the node's operator. Zero values mean the defaults.
type Options struct {
	Program      string `yaml:"program" usage:"QEMU; empty: qemu-system-x86_64 in PATH"`
	Accel        string `yaml:"accel" usage:"kvm, tcg (emulation, which is slow) or auto: kvm if the processor and the rights at /dev/kvm allow it"`
	CgroupParent string `yaml:"cgroup_parent" usage:"cgroup of all machines, a path of its own for each engine on the machine"`
	UID          int    `yaml:"uid" usage:"user that QEMU runs as, never root; 0: nobody"`
	GID          int    `yaml:"gid" usage:"group that QEMU runs as; 0: nogroup"`
}

// Validate returns the first error in the options (ErrInvalid).
func (o Options) Validate() error {
	switch {
	case !slices.Contains([]string{"", "auto", "kvm", "tcg"}, o.Accel):
		return fmt.Errorf("accel: %q, want auto, kvm or tcg: %w", o.Accel, api.ErrInvalid)
	case o.UID < 0 || o.GID < 0:
		return fmt.Errorf("uid and gid: %d and %d, want 0 or more: %w", o.UID, o.GID, api.ErrInvalid)
	}
	return nil
}

// Config configures the runtime. Zero values mean the defaults.
type Config struct {
	Options
	StateDir string // required
	LogLimit int64  // bytes of each workload's log; default 16 MiB
	Network  bool   // workloads have network namespaces, in which the netmanager connects them

	// Artifact fetches images of registries; nil: there are none.
	Artifact func(ctx context.Context, w runtime.Workload) (runtime.Artifact, error)
	// Client returns a client for archives at a host, which an SLA names.
	Client func(host string) (*http.Client, error)
}

// Runtime is a runtime.Runtime.
type Runtime struct {
	*shim.Workloads
	cfg     Config
	images  images
	version string
	groups  []int // of QEMU's process
}

// New creates the runtime and adopts the workloads that an earlier one started. It fails if QEMU is not
// installed.
func New(cfg Config, log *slog.Logger) (*Runtime, error) {
	cfg.Program = cmp.Or(cfg.Program, "qemu-system-x86_64")
	cfg.Accel = cmp.Or(cfg.Accel, "auto")
	cfg.CgroupParent = cmp.Or(cfg.CgroupParent, "/treeline/qemu")
	cfg.UID, cfg.GID = cmp.Or(cfg.UID, nobody), cmp.Or(cfg.GID, nobody)
	cfg.LogLimit = cmp.Or(cfg.LogLimit, 16<<20)
	r, err := open(cfg, log)
	if err != nil {
		return nil, fmt.Errorf("QEMU runtime: %w", err)
	}
	return r, nil
}

func open(cfg Config, log *slog.Logger) (*Runtime, error) {
	if goruntime.GOARCH != "amd64" {
		return nil, fmt.Errorf("virtual machines are supported on amd64 only, this machine is %s: %w", goruntime.GOARCH, api.ErrUnavailable)
	}
	if !filepath.IsAbs(cfg.StateDir) {
		return nil, fmt.Errorf("state directory %q: want an absolute path: %w", cfg.StateDir, api.ErrInvalid)
	}
	var err error
	if cfg.Program, err = exec.LookPath(cfg.Program); err != nil {
		return nil, fmt.Errorf("QEMU is not installed (on Debian: apt-get install qemu-system-x86), or name it in qemu.program: %w: %w", err, api.ErrUnavailable)
	}
	version, err := exec.Command(cfg.Program, "--version").Output()
	if err != nil {
		return nil, fmt.Errorf("run %s --version: %w", cfg.Program, err)
	}
	accel, groups, reason := accelerator(cfg.Accel, "/dev/kvm", "/proc/cpuinfo")
	switch {
	case accel == "":
		return nil, fmt.Errorf("qemu.accel is %s: %w", cfg.Accel, reason)
	case reason != nil:
		log.Warn("virtual machines are emulated, which is slow: this machine has no KVM that can be used", "err", reason)
	}
	cfg.Accel = accel
	unpacked, err := openCache(filepath.Join(cfg.StateDir, "images"), maxImages)
	if err != nil {
		return nil, err
	}
	r := &Runtime{
		cfg: cfg, images: images{unpacked, cfg.Artifact, cfg.Client}, groups: groups,
		version: strings.TrimSpace(strings.SplitN(string(version), "\n", 2)[0]) + " (" + cfg.Accel + ")",
	}
	r.Workloads, err = shim.Open(shim.Config{
		Name: shimName, StateDir: cfg.StateDir, CgroupParent: cfg.CgroupParent, LogLimit: cfg.LogLimit,
		TermShim: true, Release: func(id string) error { return deleteNamespace(r.namespace(id)) },
	})
	return r, err
}

// accelerator returns what machines run with, kvm or tcg, and the groups that QEMU needs for that. If want is
// auto, reason says why it is not kvm; if want is kvm and cannot be had, accel is empty.
func accelerator(want, device, cpus string) (accel string, groups []int, reason error) {
	if want == "tcg" {
		return want, nil, nil
	}
	groups, reason = kvmGroups(device)
	if reason == nil && want == "auto" && !virtualizes(cpus) {
		reason = fmt.Errorf("the processor says neither vmx nor svm, so that KVM may not boot every kernel (qemu.accel: kvm uses it nevertheless): %w", api.ErrUnavailable)
	}
	switch {
	case reason == nil:
		return "kvm", groups, nil
	case want == "auto":
		return "tcg", nil, reason
	}
	return "", nil, reason
}

// cpuInfo returns the value of the first line with a key in a file such as /proc/cpuinfo.
func cpuInfo(path, want string) string {
	text, _ := os.ReadFile(path)
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == want {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// virtualizes reports whether the processor virtualizes. KVM without that, as in some clouds, cannot boot
// every kernel.
func virtualizes(cpus string) bool {
	flags := strings.Fields(cpuInfo(cpus, "flags"))
	return slices.Contains(flags, "vmx") || slices.Contains(flags, "svm")
}

// emulatedKHz returns the frequency of an emulated time stamp counter, which is the machine's own. The
// machine microvm has no other clock, with which a guest on a busy machine could measure it. It is 0 with
// KVM, which tells the guest, and if it is unknown.
func emulatedKHz(accel string) int {
	mhz, err := strconv.ParseFloat(cpuInfo("/proc/cpuinfo", "cpu MHz"), 64)
	if accel != "tcg" || err != nil {
		return 0
	}
	return int(mhz * 1000)
}

// kvmGroups returns the groups that an unprivileged process needs to use the device.
func kvmGroups(path string) ([]int, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	switch mode := info.Mode().Perm(); {
	case mode&0o006 == 0o006:
		return nil, nil
	case ok && mode&0o060 == 0o060 && st.Gid != 0:
		return []int{int(st.Gid)}, nil
	}
	return nil, fmt.Errorf("%s belongs to no group that may use it; make it so (chgrp kvm %s; chmod g+rw %s): %w", path, path, path, api.ErrForbidden)
}

// Info implements runtime.Runtime.
func (r *Runtime) Info(context.Context) (runtime.Info, error) {
	return runtime.Info{Version: r.version, Runtimes: slices.Clone(Virtualizations)}, nil
}

// Create implements runtime.Runtime.
func (r *Runtime) Create(ctx context.Context, w runtime.Workload) error {
	var image string
	done := func() {}
	fetch := func() error {
		dir, release, err := r.fetch(ctx, w)
		if err == nil {
			image, done = dir, release
		}
		return err
	}
	defer func() { done() }()
	return r.Put(w, fetch, func(dir string) (shim.Plan, error) { return r.plan(w, image, dir) })
}

// Fetch implements runtime.Fetcher.
func (r *Runtime) Fetch(ctx context.Context, w runtime.Workload) error {
	_, done, err := r.fetch(ctx, w)
	if err == nil {
		done()
	}
	return err
}

func (r *Runtime) fetch(ctx context.Context, w runtime.Workload) (dir string, done func(), err error) {
	if err := check(w); err != nil {
		return "", nil, err
	}
	return r.images.get(ctx, w)
}

// check refuses what a virtual machine cannot do.
func check(w runtime.Workload) error {
	m := w.Spec
	memory, _ := runtime.LimitsOf(m)
	switch {
	case !slices.Contains(Virtualizations, m.Virtualization):
		return runtime.Errorf(api.ReasonNoRuntime, "virtualization %q is not available, want one of %q", m.Virtualization, Virtualizations)
	case m.Privileged:
		return runtime.Errorf(api.ReasonPrivilege, "a virtual machine cannot run privileged")
	case m.Stdin || m.TTY:
		return runtime.Errorf(api.ReasonNoRuntime, "a virtual machine has no stdin and no tty; use virtualization: container")
	case len(w.Devices) > 0:
		return runtime.Errorf(api.ReasonNoDevice, "a virtual machine cannot have devices")
	case len(w.Mounts) > 0 || w.Layer != "":
		return runtime.Errorf(api.ReasonNoRuntime, "volumes are not supported for virtual machines")
	case w.Files != nil || len(m.Files) > 0:
		return runtime.Errorf(api.ReasonNoFiles, "a virtual machine cannot have files: %w", api.ErrUnavailable)
	case memory < api.MinVMMemory:
		return runtime.Errorf(api.ReasonStartFailed, "memory: %d MiB, but a virtual machine needs at least %d", memory, api.MinVMMemory)
	}
	return nil
}

// plan writes what the shim boots.
func (r *Runtime) plan(w runtime.Workload, image, dir string) (p shim.Plan, err error) {
	id := runtime.ID(w.Key)
	c, err := link(image, dir)
	if err != nil {
		return p, err
	}
	memory, cpu := runtime.LimitsOf(w.Spec)
	hostname := id[:12]
	m := machine{
		QEMU: r.cfg.Program, Accel: r.cfg.Accel, Unikernel: w.Spec.Virtualization == api.Unikernel,
		MemoryMB: memory - overheadMB - c.Bytes>>20, CPUs: int((cpu + 999) / 1000), NetNS: r.namespace(id),
		Hostname: hostname, Resolv: runtime.ResolvConf(w.Instance.Service()), Hosts: runtime.Hosts(hostname),
		Cmdline: c.Cmdline, Args: c.Args, Env: slices.Concat(c.Env, w.Spec.Environment, w.Env()), Initrd: c.Initrd, KHz: emulatedKHz(r.cfg.Accel),
	}
	if cmd := slices.DeleteFunc(slices.Clone(w.Spec.Cmd), func(a string) bool { return a == "" }); len(cmd) > 0 {
		m.Args = w.Spec.Cmd
	}
	if m.MemoryMB < minGuestMB {
		return p, runtime.Errorf(api.ReasonStartFailed, "memory: %d MiB leave nothing to the guest: its kernel and initial file system have %d MiB, and QEMU needs %d more", memory, c.Bytes>>20, overheadMB)
	}
	if m.Unikernel {
		if err := checkArgs(m.Args); err != nil {
			return p, runtime.Errorf(api.ReasonStartFailed, "%w", err)
		}
	}
	text, err := json.Marshal(m)
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, machineFile), text, 0o600)
	}
	if err == nil {
		err = createNamespace(r.namespace(id))
	}
	return shim.Plan{
		Limits: cgroup.Limits{MemoryMB: memory, MilliCPU: cpu, PIDs: maxPIDs},
		UID:    r.cfg.UID, GID: r.cfg.GID, Groups: r.groups,
	}, err
}

func (r *Runtime) namespace(id string) string { return namespaceOf(r.cfg.StateDir, id) }

// Namespace implements runtime.Namespaced.
func (r *Runtime) Namespace(_ context.Context, k wire.Key) (string, runtime.Workload, error) {
	id := runtime.ID(k)
	p, phase, err := r.Find(id)
	if errors.Is(err, fs.ErrNotExist) {
		err = api.ErrNotFound
	}
	if err != nil {
		return "", runtime.Workload{}, fmt.Errorf("find the network namespace of %s: %w", k, err)
	}
	w := runtime.Workload{Key: p.Key, Attempt: p.Attempt, Spec: p.Spec, Devices: p.Devices, Addresses: p.Addresses}
	if phase == wire.WorkloadExited || !r.cfg.Network {
		return "", w, nil
	}
	return r.namespace(id), w, nil
}

// Housekeep implements runtime.Housekeeper: it trims the logs and removes unused images.
func (r *Runtime) Housekeep(ctx context.Context) error {
	return errors.Join(r.Workloads.Housekeep(ctx), r.images.cache.collect(time.Now().Add(-unusedFor)))
}

// Purge implements runtime.Purger: it removes all images.
func (r *Runtime) Purge(context.Context) error {
	return r.images.cache.collect(time.Now().Add(time.Hour))
}
