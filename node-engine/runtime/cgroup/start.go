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

// Start starts cmd inside the group; the child is there from its first
// instruction on. A before that is not nil runs first, on the thread that forks:
// what it changes of the thread the child inherits and nobody else keeps.
func (g Group) Start(cmd *exec.Cmd, before func() error) error {
	start := g.startV1
	if g.fs.V2() {
		start = g.startV2
	}
	result := make(chan error, 1)
	go func() {
		// The goroutine ends locked, and so its thread ends with it.
		runtime.LockOSThread()
		if syscall.Gettid() == syscall.Getpid() {
			// The first thread carries the memory account of the whole process and
			// must stay as it is. While this goroutine holds it, another one gets
			// another thread.
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

// startV2 has the kernel create the child within the group.
func (g Group) startV2(cmd *exec.Cmd) error {
	d, err := os.Open(g.dir(""))
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

// startV1 moves this thread into the group and forks from it: a child is born
// where its parent's thread is.
func (g Group) startV1(cmd *exec.Cmd) error {
	tid := strconv.Itoa(syscall.Gettid())
	for _, d := range g.dirs() {
		if err := write(d, "tasks", tid); err != nil {
			return fmt.Errorf("start %s in cgroup %s: enter %s: %w", cmd.Path, g.path, filepath.Dir(d), err)
		}
	}
	err := cmd.Start()
	// Out again before the thread ends: a dying thread keeps a group from being
	// removed, and a frozen group would freeze it.
	for _, d := range g.dirs() {
		_ = write(g.top(d), "tasks", tid)
	}
	return err
}

// top is the root of the hierarchy that d lies in.
func (g Group) top(d string) string { return d[:len(d)-len(g.path)] }
