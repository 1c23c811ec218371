// Package cgroup limits and kills groups of processes with control groups of version 2 or 1,
// including hybrid machines. A group is named by its path below the root,
// "/treeline/dev/3f2a", which is the same for both versions. On version 1 a group consists of
// one directory per controller.
//
//	fs, err := cgroup.Mounted()
//	g, err := fs.Create("/treeline/dev/3f2a", cgroup.Limits{MemoryMB: 64, MilliCPU: 500, PIDs: 512})
//	err = g.Start(cmd, nil)
//	err = fs.Group("/treeline/dev/3f2a").Kill(ctx)
package cgroup

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	root      = "/sys/fs/cgroup"
	cpuPeriod = 100_000 // microseconds, the kernel's default

	removeTimeout = 20 * time.Second
)

// controllers are the controllers for limits and kills. A machine with version 1 may lack some.
var controllers = []string{"memory", "cpu", "pids", "freezer"}

type FS struct {
	v2    bool
	roots map[string]string // root of the hierarchy of each controller; on version 2 all are the same
}

// Limits are the limits of a group; 0 means no limit.
type Limits struct {
	MemoryMB int64 // MiB, swap included
	MilliCPU int64 // thousandths of a CPU
	PIDs     int64
}

// Mounted returns the machine's control groups. It fails if none are mounted.
func Mounted() (FS, error) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return unified(root), nil
	}
	f := FS{roots: map[string]string{}}
	for _, c := range controllers {
		dir := filepath.Join(root, c)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			f.roots[c] = dir
		}
	}
	if len(f.roots) == 0 {
		return FS{}, fmt.Errorf("find control groups below %s: none is mounted; mount cgroup2 there", root)
	}
	return f, nil
}

// unified returns the version 2 hierarchy at dir.
func unified(dir string) FS {
	f := FS{v2: true, roots: map[string]string{}}
	for _, c := range controllers {
		f.roots[c] = dir
	}
	return f
}

// V2 reports whether the machine has version 2 only.
func (f FS) V2() bool { return f.v2 }

// Group returns the group at path, which need not exist.
func (f FS) Group(path string) Group { return Group{fs: f, path: filepath.Clean("/" + path)} }

// Create creates the group, if it does not exist, and sets its limits.
func (f FS) Create(path string, l Limits) (Group, error) {
	g := f.Group(path)
	if err := g.create(l); err != nil {
		return Group{}, fmt.Errorf("create cgroup %s: %w", g.path, err)
	}
	return g, nil
}

type Group struct {
	fs   FS
	path string
}

func (g Group) Path() string                 { return g.path }
func (g Group) dir(controller string) string { return filepath.Join(g.fs.roots[controller], g.path) }

// dirs returns all directories of the group, that of the freezer last.
func (g Group) dirs() (out []string) {
	for _, c := range controllers {
		if g.fs.roots[c] != "" {
			out = append(out, g.dir(c))
		}
	}
	return slices.Compact(out)
}

func (g Group) create(l Limits) error {
	if g.fs.v2 {
		if err := g.delegate(); err != nil {
			return err
		}
	}
	for _, d := range g.dirs() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	for _, s := range g.fs.settings(l) {
		err := write(g.dir(s.controller), s.file, s.value)
		if err != nil && !(s.optional && errors.Is(err, fs.ErrNotExist)) {
			return err
		}
	}
	return nil
}

// delegate creates the parents of the group and enables the controllers in each, from the
// root down. It skips controllers that the machine lacks: setting a limit fails then.
func (g Group) delegate() error {
	dir := g.fs.roots["memory"]
	for _, part := range strings.Split(g.path, "/")[1:] {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		have, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
		if err != nil {
			return err
		}
		for _, c := range strings.Fields(string(have)) {
			if !slices.Contains(controllers, c) {
				continue
			}
			if err := write(dir, "cgroup.subtree_control", "+"+c); err != nil {
				return err
			}
		}
		dir = filepath.Join(dir, part)
	}
	return nil
}

// setting is a file of a group with its value.
type setting struct {
	controller, file, value string
	optional                bool // a kernel without swap accounting has no such file
}

// settings returns the files to write for the limits, in this order: version 1 rejects a limit
// with swap that is below the one without.
func (f FS) settings(l Limits) (all []setting) {
	memory, quota := strconv.FormatInt(l.MemoryMB<<20, 10), quota(l.MilliCPU)
	if l.MemoryMB > 0 && f.v2 {
		all = append(all, setting{"memory", "memory.max", memory, false}, setting{"memory", "memory.swap.max", "0", true})
	} else if l.MemoryMB > 0 {
		all = append(all, setting{"memory", "memory.limit_in_bytes", memory, false},
			setting{"memory", "memory.memsw.limit_in_bytes", memory, true})
	}
	if l.MilliCPU > 0 && f.v2 {
		all = append(all, setting{"cpu", "cpu.max", fmt.Sprintf("%d %d", quota, cpuPeriod), false})
	} else if l.MilliCPU > 0 {
		all = append(all, setting{"cpu", "cpu.cfs_period_us", strconv.Itoa(cpuPeriod), false},
			setting{"cpu", "cpu.cfs_quota_us", strconv.FormatInt(quota, 10), false})
	}
	if l.PIDs > 0 {
		all = append(all, setting{"pids", "pids.max", strconv.FormatInt(l.PIDs, 10), false})
	}
	return all
}

// quota returns the CPU time per period in microseconds, at least the kernel's minimum of 1 ms.
func quota(milliCPU int64) int64 { return max(milliCPU*cpuPeriod/1000, 1000) }

// Procs returns the processes in the group and the groups below it; none if the group does not
// exist.
func (g Group) Procs() ([]int, error) {
	dirs := g.dirs()
	var pids []int
	err := filepath.WalkDir(dirs[len(dirs)-1], func(p string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil // removed meanwhile
		}
		if err != nil {
			return err
		}
		pids = append(pids, g.residents(p, string(b))...)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list processes of cgroup %s: %w", g.path, err)
	}
	return pids, nil
}

// residents returns the processes listed in procs, the content of the cgroup.procs of dir,
// without those that only have a thread there. Version 1 lists a process as soon as one of its
// threads is in the group, and startV1 forks from such a thread: a guard that kills the group
// at that moment would kill the engine.
func (g Group) residents(dir, procs string) (pids []int) {
	var tasks []string
	if !g.fs.v2 {
		b, _ := os.ReadFile(filepath.Join(dir, "tasks"))
		tasks = strings.Fields(string(b))
	}
	for _, s := range strings.Fields(procs) {
		pid, err := strconv.Atoi(s)
		onlyThread := !g.fs.v2 && !slices.Contains(tasks, s) && leaderLives(pid)
		if err == nil && pid > 0 && !onlyThread {
			pids = append(pids, pid)
		}
	}
	return pids
}

// leaderLives reports whether the first thread of the process lives. The group of a process
// is that of its first thread, unless that has ended.
func leaderLives(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// Kill kills every process of the group and returns when none is left. No process escapes by
// forking: version 2 kills all at once, and on version 1 the group is frozen meanwhile.
func (g Group) Kill(ctx context.Context) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		pids, err := g.Procs()
		if err != nil || len(pids) == 0 {
			return err
		}
		if err := g.killOnce(); err != nil {
			return err
		}
		select {
		case <-time.After(wait): // version 1 has no notification of an empty group
		case <-ctx.Done():
			return fmt.Errorf("kill cgroup %s: %d processes are left: %w", g.path, len(pids), context.Cause(ctx))
		}
	}
}

func (g Group) killOnce() error {
	file, frozen, thawed := "freezer.state", "FROZEN", "THAWED"
	if g.fs.v2 {
		err := write(g.dir("memory"), "cgroup.kill", "1")
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		file, frozen, thawed = "cgroup.freeze", "1", "0" // Linux before 5.14 has no cgroup.kill
	}
	if g.fs.roots["freezer"] != "" {
		_ = write(g.dir("freezer"), file, frozen)
		defer write(g.dir("freezer"), file, thawed)
	}
	pids, err := g.Procs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("kill process %d of cgroup %s: %w", pid, g.path, err)
		}
	}
	return nil
}

// OOMKills returns how often the kernel killed a process of this group at its memory limit; 0
// if the group does not exist.
func (g Group) OOMKills() int {
	name := "memory.oom_control"
	if g.fs.v2 {
		name = "memory.events"
	}
	b, _ := os.ReadFile(filepath.Join(g.dir("memory"), name))
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			kills, _ := strconv.Atoi(strings.TrimSpace(n))
			return kills
		}
	}
	return 0
}

// Usage returns the processor time that the group's processes have used, and the memory that they use, in
// bytes, without the cache of files that the kernel can drop at once.
func (g Group) Usage() (cpu time.Duration, memory int64, err error) {
	if !g.fs.v2 {
		return g.usageV1()
	}
	used, err := counter(filepath.Join(g.dir("cpu"), "cpu.stat"), "usage_usec")
	if err != nil {
		return 0, 0, err
	}
	memory, err = counter(filepath.Join(g.dir("memory"), "memory.current"), "")
	if err != nil {
		return 0, 0, err
	}
	cache, err := counter(filepath.Join(g.dir("memory"), "memory.stat"), "inactive_file")
	return time.Duration(used) * time.Microsecond, max(0, memory-cache), err
}

func (g Group) usageV1() (cpu time.Duration, memory int64, err error) {
	used, err := counter(filepath.Join(root, "cpuacct", g.path, "cpuacct.usage"), "")
	if err != nil {
		return 0, 0, err
	}
	memory, err = counter(filepath.Join(g.dir("memory"), "memory.usage_in_bytes"), "")
	if err != nil {
		return 0, 0, err
	}
	cache, err := counter(filepath.Join(g.dir("memory"), "memory.stat"), "total_inactive_file")
	return time.Duration(used), max(0, memory-cache), err
}

// counter reads the number after a name in a file, or the only number if name is empty.
func counter(path, name string) (int64, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if parts := strings.Fields(line); len(parts) == 2 && parts[0] == name || len(parts) == 1 && name == "" {
			return strconv.ParseInt(parts[len(parts)-1], 10, 64)
		}
	}
	return 0, fmt.Errorf("read %s: no number %s", path, name)
}

// Exists reports whether a directory of the group exists.
func (g Group) Exists() bool {
	return slices.ContainsFunc(g.dirs(), func(d string) bool {
		_, err := os.Stat(d)
		return err == nil
	})
}

// Remove removes the empty group and the empty groups below it. It succeeds if the group does
// not exist.
func (g Group) Remove() error {
	dirs := g.dirs()
	for _, d := range dirs {
		for _, p := range below(d) {
			if err := removeDir(p); err != nil {
				return fmt.Errorf("remove cgroup %s: %w", g.path, err)
			}
		}
	}
	// A container runtime creates the group in every hierarchy of version 1, and removes only
	// the lowest directory. The rest is removed here as far as possible.
	hierarchies, _ := os.ReadDir(root)
	for _, h := range hierarchies {
		if d := filepath.Join(root, h.Name(), g.path); !g.fs.v2 && !slices.Contains(dirs, d) {
			for _, p := range below(d) {
				_ = syscall.Rmdir(p)
			}
		}
	}
	return nil
}

// below returns the directory and all directories below it, the deepest first.
func below(dir string) []string {
	var out []string
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() {
			out = append(out, p)
		}
		return nil
	})
	slices.Reverse(out)
	return out
}

// removeDir retries while the kernel cleans up after the last process, which takes seconds on
// a busy machine.
func removeDir(p string) error {
	end := time.Now().Add(removeTimeout)
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		err := syscall.Rmdir(p)
		if err == nil || errors.Is(err, syscall.ENOENT) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(end) {
			return &fs.PathError{Op: "rmdir", Path: p, Err: err}
		}
		time.Sleep(wait)
	}
}

func write(dir, name, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
