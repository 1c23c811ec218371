package cgroup

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"
)

// Start starts cmd in the group: the child is in it from its first instruction. before, if not
// nil, runs on the thread that forks, and the child inherits the attributes of the thread that it
// changes. The thread then ends.
func (g Group) Start(cmd *exec.Cmd, before func() error) error {
	start := g.startV1
	if g.fs.v2 {
		start = g.startV2
	}
	result := make(chan error, 1)
	go func() {
		// The goroutine ends locked, so its thread ends with it.
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			// The kernel accounts the memory of the whole process to the group of its first
			// thread, which must not change. While this goroutine holds that thread,
			// another goroutine gets a different one.
			result <- g.Start(cmd, before)
			runtime.UnlockOSThread()
			return
		}
		if before != nil {
			if err := before(); err != nil {
				result <- err
				return
			}
		}
		result <- start(cmd)
	}()
	return <-result
}

// startV2 makes the kernel create the child in the group.
func (g Group) startV2(cmd *exec.Cmd) error {
	d, err := os.Open(g.dir("memory"))
	if err != nil {
		return fmt.Errorf("start %s in cgroup %s: %w", cmd.Path, g.path, err)
	}
	defer d.Close()
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.UseCgroupFD = true
	cmd.SysProcAttr.CgroupFD = int(d.Fd())
	return cmd.Start()
}

// startV1 moves this thread into the group and forks from it: a child starts in the group of
// its parent's thread.
func (g Group) startV1(cmd *exec.Cmd) error {
	tid := strconv.Itoa(syscall.Gettid())
	for _, d := range g.dirs() {
		if err := write(d, "tasks", tid); err != nil {
			return fmt.Errorf("start %s in cgroup %s: enter %s: %w", cmd.Path, g.path, filepath.Dir(d), err)
		}
	}
	err := cmd.Start()
	// Leave the group before the thread ends: an ending thread keeps a group from being
	// removed, and a frozen group would freeze it.
	for _, d := range g.dirs() {
		_ = write(g.top(d), "tasks", tid)
	}
	return err
}

// top returns the root of the hierarchy that contains d, a directory of the group.
func (g Group) top(d string) string { return d[:len(d)-len(g.path)] }
