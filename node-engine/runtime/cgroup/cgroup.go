// Package cgroup bounds and kills groups of processes, on version 2 and on
// version 1 (hybrid machines included). A group is named by its path below the
// root, "/treeline/dev/3f2a", the same on both; on version 1 it stands for one
// directory in each controller. It knows nothing of workloads.
//
//	fs, err := cgroup.Mounted()
//	g, err := fs.Create("/treeline/dev/3f2a", cgroup.Limits{MemoryMB: 64, MilliCPU: 500, PIDs: 512})
//	err = g.Start(cmd, nil)                // the child is inside from its first instruction
//	err = fs.Group("/treeline/dev/3f2a").Kill(ctx)
package cgroup

import (
	"bufio"
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

	removeWithin = 20 * time.Second
)

// controllers that limits and kills need, where version 1 has them.
var controllers = []string{"memory", "cpu", "pids", "freezer"}

// FS is the machine's control groups.
type FS struct {
	unified string            // the directory of version 2, or "" on version 1
	v1      map[string]string // controller → its directory on version 1
}

// Limits bounds a group; a zero bounds nothing.
type Limits struct {
	MemoryMB int64 // MiB, swap included
	MilliCPU int64 // thousandths of a CPU
	PIDs     int64
}

// Mounted finds the machine's control groups. Without any, or without the right
// to use them, it is an error that says so.
func Mounted() (FS, error) {
	if _, err := os.Stat(filepath.Join(root, "cgroup.controllers")); err == nil {
		return FS{unified: root}, nil
	}
	f := FS{v1: make(map[string]string)}
	for _, c := range controllers {
		dir := filepath.Join(root, c)
		if _, err := os.Stat(filepath.Join(dir, "cgroup.procs")); err == nil {
			f.v1[c] = dir
		}
	}
	if len(f.v1) == 0 {
		return FS{}, fmt.Errorf("find control groups below %s: none is mounted there; mount cgroup2 on it", root)
	}
	return f, nil
}

// Unified makes an FS of the version 2 hierarchy at dir.
func Unified(dir string) FS { return FS{unified: dir} }

// V2 reports whether the machine has version 2 alone.
func (f FS) V2() bool { return f.unified != "" }

// Group is the group at path, which need not exist.
func (f FS) Group(path string) Group { return Group{fs: f, path: filepath.Clean("/" + path)} }

// Create makes the group, or takes the one that exists, and sets its limits.
func (f FS) Create(path string, l Limits) (Group, error) {
	g := f.Group(path)
	if err := g.create(l); err != nil {
		return Group{}, fmt.Errorf("create cgroup %s: %w", g.path, err)
	}
	return g, nil
}

// Group is one control group.
type Group struct {
	fs   FS
	path string
}

// Path is the group's path below the root.
func (g Group) Path() string { return g.path }

func (g Group) dir(controller string) string {
	if g.fs.V2() {
		return filepath.Join(g.fs.unified, g.path)
	}
	return filepath.Join(g.fs.v1[controller], g.path)
}

// dirs are all directories that make up the group.
func (g Group) dirs() []string {
	if g.fs.V2() {
		return []string{g.dir("")}
	}
	var out []string
	for _, c := range controllers {
		if g.fs.v1[c] != "" {
			out = append(out, g.dir(c))
		}
	}
	return out
}

func (g Group) create(l Limits) error {
	if g.fs.V2() {
		if err := g.delegate(); err != nil {
			return err
		}
	}
	for _, d := range g.dirs() {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return err
		}
	}
	if g.fs.V2() {
		return g.limitV2(l)
	}
	return g.limitV1(l)
}

// delegate makes the groups above this one and turns the controllers on in each,
// from the root down. A controller that the machine lacks is left out here and
// missed by limitV2 if it is needed.
func (g Group) delegate() error {
	dir := g.fs.unified
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

func (g Group) limitV2(l Limits) error {
	d := g.dir("")
	if l.MemoryMB > 0 {
		if err := write(d, "memory.max", strconv.FormatInt(l.MemoryMB<<20, 10)); err != nil {
			return err
		}
		if err := write(d, "memory.swap.max", "0"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err // a kernel without swap accounting has no such file
		}
	}
	if l.MilliCPU > 0 {
		if err := write(d, "cpu.max", fmt.Sprintf("%d %d", quota(l.MilliCPU), cpuPeriod)); err != nil {
			return err
		}
	}
	if l.PIDs > 0 {
		return write(d, "pids.max", strconv.FormatInt(l.PIDs, 10))
	}
	return nil
}

func (g Group) limitV1(l Limits) error {
	if l.MemoryMB > 0 {
		b := strconv.FormatInt(l.MemoryMB<<20, 10)
		// The limit with swap may not fall below the limit without, nor be set
		// before it, so a group that has been limited is left as it is.
		if err := write(g.dir("memory"), "memory.limit_in_bytes", b); err != nil {
			return err
		}
		err := write(g.dir("memory"), "memory.memsw.limit_in_bytes", b)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if l.MilliCPU > 0 {
		if err := write(g.dir("cpu"), "cpu.cfs_period_us", strconv.Itoa(cpuPeriod)); err != nil {
			return err
		}
		if err := write(g.dir("cpu"), "cpu.cfs_quota_us", strconv.FormatInt(quota(l.MilliCPU), 10)); err != nil {
			return err
		}
	}
	if l.PIDs > 0 {
		return write(g.dir("pids"), "pids.max", strconv.FormatInt(l.PIDs, 10))
	}
	return nil
}

// quota is the time per period, at least the kernel's minimum of 1 ms.
func quota(milliCPU int64) int64 { return max(milliCPU*cpuPeriod/1000, 1000) }

// Procs are the processes in the group and the groups below it. Of a group that
// does not exist there are none.
func (g Group) Procs() ([]int, error) {
	dir := g.dir("freezer")
	if !g.fs.V2() && g.fs.v1["freezer"] == "" {
		dir = g.dirs()[0]
	}
	var pids []int
	err := filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || !e.IsDir() {
			return err
		}
		b, err := os.ReadFile(filepath.Join(p, "cgroup.procs"))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil // it went while we looked
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

// residents returns the processes listed in procs, the content of the cgroup.procs
// of dir, without those that only have a thread there. Version 1 lists a process as
// soon as one of its threads is in the group, and startV1 forks from such a thread:
// a guard that kills the group at that moment would kill the engine.
func (g Group) residents(dir, procs string) (pids []int) {
	var tasks []string
	if !g.fs.V2() {
		b, err := os.ReadFile(filepath.Join(dir, "tasks"))
		if err == nil {
			tasks = strings.Fields(string(b))
		}
	}
	for _, s := range strings.Fields(procs) {
		pid, err := strconv.Atoi(s)
		if err != nil || pid <= 0 {
			continue
		}
		if !g.fs.V2() && !slices.Contains(tasks, s) && leaderLives(pid) {
			continue
		}
		pids = append(pids, pid)
	}
	return pids
}

// leaderLives reports whether the first thread of the process lives. Only a living one
// shows in which group the process is.
func leaderLives(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(b[strings.LastIndexByte(string(b), ')')+1:]), " ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// Signal sends s to every process of the group.
func (g Group) Signal(s syscall.Signal) error {
	pids, err := g.Procs()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("signal process %d of cgroup %s: %w", pid, g.path, err)
		}
	}
	return nil
}

// Kill kills every process of the group and returns when none is left. Nothing
// escapes by forking: version 2 kills in one step, and on version 1 the group is
// frozen while it is killed.
func (g Group) Kill(ctx context.Context) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		pids, err := g.Procs()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		if err := g.killOnce(); err != nil {
			return err
		}
		select {
		case <-time.After(wait): // the kernel tells nobody when a version 1 group empties
		case <-ctx.Done():
			return fmt.Errorf("kill cgroup %s: %d processes are left: %w", g.path, len(pids), context.Cause(ctx))
		}
	}
}

func (g Group) killOnce() error {
	if g.fs.V2() {
		err := write(g.dir(""), "cgroup.kill", "1")
		if err == nil || !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		// Linux before 5.14 has no cgroup.kill.
		_ = write(g.dir(""), "cgroup.freeze", "1")
		defer write(g.dir(""), "cgroup.freeze", "0")
		return g.Signal(syscall.SIGKILL)
	}
	if g.fs.v1["freezer"] != "" {
		_ = write(g.dir("freezer"), "freezer.state", "FROZEN")
		defer write(g.dir("freezer"), "freezer.state", "THAWED")
	}
	return g.Signal(syscall.SIGKILL)
}

// OOMKills counts how often the kernel killed in this group at its memory
// limit; 0 for a group that does not exist.
func (g Group) OOMKills() int {
	name := "memory.oom_control"
	if g.fs.V2() {
		name = "memory.events"
	}
	f, err := os.Open(filepath.Join(g.dir("memory"), name))
	if err != nil {
		return 0
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		if n, ok := strings.CutPrefix(s.Text(), "oom_kill "); ok {
			kills, _ := strconv.Atoi(n)
			return kills
		}
	}
	return 0
}

// Exists reports whether any part of the group exists.
func (g Group) Exists() bool {
	return slices.ContainsFunc(g.dirs(), func(d string) bool {
		_, err := os.Stat(d)
		return err == nil
	})
}

// Remove removes the empty group and the empty groups below it. Removing what
// does not exist succeeds.
func (g Group) Remove() error {
	dirs := g.dirs()
	for _, d := range dirs {
		for _, p := range below(d) {
			if err := removeDir(p); err != nil {
				return fmt.Errorf("remove cgroup %s: %w", g.path, err)
			}
		}
	}
	// A runtime makes the group in every hierarchy of version 1 and removes only what it
	// made last, not the groups above it. Nothing here depends on those.
	hierarchies, _ := os.ReadDir(root)
	for _, h := range hierarchies {
		if d := filepath.Join(root, h.Name(), g.path); !g.fs.V2() && !slices.Contains(dirs, d) {
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

// removeDir retries while the kernel still clears up after the last process, which
// takes seconds where others have the processors.
func removeDir(p string) error {
	end := time.Now().Add(removeWithin)
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
