package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"

	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/helper"
	"golang.org/x/sys/unix"
)

// Start starts the workload of a plan, whose directory is dir, in its control group. It returns when the
// workload runs. A nil ExitCodeOf stands for ExitCode.
type Start func(p Plan, dir string, group cgroup.Group) (*exec.Cmd, ExitCodeOf, error)

// ExitCodeOf returns the exit code of a workload whose command has ended.
type ExitCodeOf func(*os.ProcessState) int

// Main runs a shim and exits, if this process was started as the shim with the name. Programs that use
// the runtime call it first in main.
//
// A shim starts one workload, waits for it, kills the remaining processes in its cgroup, and
// saves how it ended. It has no connection to the engine.
func Main(name string, start Start) {
	helper.Main(name, func(dir string, ready func()) error { return shim(dir, ready, start) })
}

// launch starts the shim of a workload and returns when the workload runs.
func (r *Workloads) launch(ctx context.Context, id string) error {
	shims, err := r.cg.Create(filepath.Join(r.cfg.CgroupParent, "shims"), cgroup.Limits{})
	if err != nil {
		return err
	}
	return helper.Start(ctx, shims, r.cfg.Name, filepath.Join(r.cfg.StateDir, "w", id))
}

// shim runs the workload in directory dir.
func shim(dir string, ready func(), start Start) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	var p Plan
	if err := helper.ReadJSON(root, workloadFile, &p); err != nil {
		return err
	}
	lock, now, err := claim(root)
	if err != nil {
		return err
	}
	defer lock.Close()
	if now.Main.PID != 0 { // it may have ended since
		ready()
		return nil
	}
	self, err := processOf(os.Getpid())
	if err != nil {
		return err
	}
	now = run{Shim: self}
	if err := helper.WriteJSON(root, runFile, now); err != nil {
		return err
	}
	cg, err := cgroup.Mounted()
	if err != nil {
		return err
	}
	group, err := cg.Create(p.Cgroup, p.Limits)
	if err != nil {
		return err
	}
	cmd, code, err := start(p, dir, group)
	if err != nil {
		return err
	}
	if now.Main, err = processOf(cmd.Process.Pid); err == nil {
		err = helper.WriteJSON(root, runFile, now)
	}
	if err != nil {
		return errors.Join(err, group.Kill(context.Background()))
	}
	_ = lock.Close()
	ready()

	_ = cmd.Wait()
	if code == nil {
		code = ExitCode
	}
	ended := exit{Code: code(cmd.ProcessState)}
	ended.OOM = ended.Code == 128+int(syscall.SIGKILL) && group.OOMKills() > 0
	// As in a container, no process outlives the first one.
	if err := group.Kill(context.Background()); err != nil {
		return err
	}
	return helper.WriteJSON(root, exitFile, ended)
}

// claim waits until no other shim is starting the workload, and returns the workload's processes. An engine that was killed
// while a shim started a workload leaves that shim, and the next engine starts another one.
func claim(dir *os.Root) (lock *os.File, now run, err error) {
	if lock, err = dir.Open("."); err != nil {
		return nil, now, err
	}
	if err = unix.Flock(int(lock.Fd()), unix.LOCK_EX); err == nil {
		err = helper.ReadJSON(dir, runFile, &now)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		_ = lock.Close()
		return nil, now, fmt.Errorf("wait for another shim of the workload: %w", err)
	}
	return lock, now, nil
}

// Command returns a command that Launch can start: in a session of its own, as the plan's user. Its
// output goes to the plan's log, which is a copy of the shim's descriptor that the caller closes.
func (p Plan) Command() (cmd *exec.Cmd, log *os.File, err error) {
	log, err = os.OpenFile(p.Log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, nil, err
	}
	groups := make([]uint32, len(p.Groups))
	for i, g := range p.Groups {
		groups[i] = uint32(g)
	}
	return &exec.Cmd{
		Path: p.Args[0], Args: p.Args, Env: p.Env, Dir: "/", Stdout: log, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: uint32(p.UID), Gid: uint32(p.GID), Groups: groups},
		},
	}, log, nil
}

// Launch starts a command in the control group. It cannot gain privileges, and the kernel kills it before
// daemons when memory is short. before, if not nil, runs on the thread that forks.
func Launch(cmd *exec.Cmd, group cgroup.Group, before func() error) error {
	// The workload inherits the score of this process, which then restores its own.
	own, err := os.ReadFile(oomScoreFile)
	if err == nil {
		err = os.WriteFile(oomScoreFile, []byte(strconv.Itoa(runtime.OOMScoreAdj)), 0)
	}
	if err != nil {
		return fmt.Errorf("set oom_score_adj of the workload: %w", err)
	}
	defer os.WriteFile(oomScoreFile, own, 0)
	return group.Start(cmd, func() error {
		if before != nil {
			if err := before(); err != nil {
				return err
			}
		}
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	})
}

const oomScoreFile = "/proc/self/oom_score_adj"

// ExitCode returns the exit code as shells do: 128 plus the signal if one killed the process.
func ExitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}
