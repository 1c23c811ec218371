// Package execs finds and kills the processes of an exec, together with all their descendants in the
// workload's control group, even if a process changed its session. Each process has the exec's id in
// its environment. The ids are also files in a directory, so that an engine can kill what an earlier
// engine, which was killed, left.
//
//	dir, err := execs.Open("/var/lib/treeline/containerd/execs")
//	for _, e := range dir.Left() { … }        // of an earlier engine
//	e, err := dir.Begin(workload)
//	cmd.Env = append(cmd.Env, e.Mark())
//	err = execs.Kill(ctx, group, e)
//	err = dir.End(e)
package execs

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

// variable is the environment variable with the exec's id.
const variable = "TREELINE_EXEC"

// Exec identifies one exec.
type Exec struct {
	Workload string // runtime.ID of its placement
	ID       string // unguessable, unique on the machine
}

// Mark returns the entry of the environment that identifies the exec's processes.
func (e Exec) Mark() string { return variable + "=" + e.ID }

func (e Exec) file() string { return e.Workload + "." + e.ID }

// Dir has a file for each exec that has not ended. It is safe for concurrent use.
type Dir struct {
	root *os.Root
	left []Exec
}

// Open opens the directory, which it creates if necessary.
func Open(path string) (*Dir, error) {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return nil, fmt.Errorf("open the directory of execs: %w", err)
	}
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, fmt.Errorf("open the directory of execs: %w", err)
	}
	d := &Dir{root: root}
	files, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list execs: %w", err), root.Close())
	}
	for _, f := range files {
		if workload, id, ok := strings.Cut(f.Name(), "."); ok {
			d.left = append(d.left, Exec{workload, id})
		}
	}
	return d, nil
}

// Close closes the directory.
func (d *Dir) Close() error { return d.root.Close() }

// Left returns the execs that had not ended when the directory was opened.
func (d *Dir) Left() []Exec { return d.left }

// Begin records a new exec in a workload.
func (d *Dir) Begin(workload string) (Exec, error) {
	id := make([]byte, 16)
	_, _ = rand.Read(id) // never fails
	e := Exec{workload, hex.EncodeToString(id)}
	f, err := d.root.OpenFile(e.file(), os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return e, fmt.Errorf("record an exec: %w", err)
	}
	return e, f.Close()
}

// End removes the record of an exec. It succeeds if there is none.
func (d *Dir) End(e Exec) error {
	if err := d.root.Remove(e.file()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove the record of an exec: %w", err)
	}
	return nil
}

// Kill kills the processes of the exec in the group, and returns when there are none.
func Kill(ctx context.Context, group cgroup.Group, e Exec) error {
	for wait := time.Millisecond; ; wait = min(2*wait, 50*time.Millisecond) {
		pids, err := find(group, e)
		if err != nil || len(pids) == 0 {
			return err
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d of an exec: %w", pid, err)
			}
		}
		select {
		case <-time.After(wait): // the kernel has no notification of their ends
		case <-ctx.Done():
			return fmt.Errorf("kill an exec: %d processes are left: %w", len(pids), context.Cause(ctx))
		}
	}
}

// find returns the exec's processes. A zombie has no environment, so that it does not count.
func find(group cgroup.Group, e Exec) (pids []int, err error) {
	all, err := group.Procs()
	if err != nil {
		return nil, err
	}
	mark := []byte(e.Mark())
	for _, pid := range all {
		env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
		if err != nil {
			continue // it has ended
		}
		for entry := range bytes.SplitSeq(env, []byte{0}) {
			if bytes.Equal(entry, mark) {
				pids = append(pids, pid)
				break
			}
		}
	}
	return pids, nil
}
