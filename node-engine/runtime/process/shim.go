package process

import (
	"context"
	"errors"
	"fmt"
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

const shimName = "treeline-shim"

// ShimMain runs a shim and exits, if this process was started as one. Programs that use the
// runtime call it first in main.
//
// A shim starts one workload, waits for it, kills the remaining processes in its cgroup, and
// saves how it ended. It has no connection to the engine.
func ShimMain() { helper.Main(shimName, shim) }

// launch starts the shim of a workload and returns when the workload runs.
func (r *Runtime) launch(ctx context.Context, id string) error {
	shims, err := r.cg.Create(filepath.Join(r.cfg.CgroupParent, "shims"), cgroup.Limits{})
	if err != nil {
		return err
	}
	return helper.Start(ctx, shims, shimName, filepath.Join(r.cfg.StateDir, "w", id))
}

// shim runs the workload in directory dir.
func shim(dir string, ready func()) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	var p plan
	if err := helper.ReadJSON(root, workloadFile, &p); err != nil {
		return err
	}
	var now run
	if now.Shim, err = processOf(os.Getpid()); err != nil {
		return err
	}
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
	cmd, err := p.start(group)
	if err != nil {
		return err
	}
	if now.Main, err = processOf(cmd.Process.Pid); err == nil {
		err = helper.WriteJSON(root, runFile, now)
	}
	if err != nil {
		return errors.Join(err, group.Kill(context.Background()))
	}
	ready()

	_ = cmd.Wait()
	ended := exit{Code: exitCode(cmd.ProcessState)}
	ended.OOM = ended.Code == 128+int(syscall.SIGKILL) && group.OOMKills() > 0
	// As in a container, no process outlives the first one.
	if err := group.Kill(context.Background()); err != nil {
		return err
	}
	return helper.WriteJSON(root, exitFile, ended)
}

// start starts the workload in its cgroup, in a session of its own, as an unprivileged user
// that cannot gain privileges.
func (p plan) start(group cgroup.Group) (*exec.Cmd, error) {
	log, err := os.OpenFile(p.Log, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := &exec.Cmd{
		Path: p.Args[0], Args: p.Args, Env: p.Env, Dir: "/", Stdout: log, Stderr: log,
		SysProcAttr: &syscall.SysProcAttr{
			Setsid:     true,
			Credential: &syscall.Credential{Uid: uint32(p.UID), Gid: uint32(p.GID), Groups: []uint32{}},
		},
	}
	// The workload inherits the score of this process, which then restores its own.
	own, err := os.ReadFile(oomScoreFile)
	if err == nil {
		err = os.WriteFile(oomScoreFile, []byte(strconv.Itoa(runtime.OOMScoreAdj)), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("set oom_score_adj of the workload: %w", err)
	}
	defer os.WriteFile(oomScoreFile, own, 0)
	err = group.Start(cmd, func() error {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	})
	return cmd, err
}

const oomScoreFile = "/proc/self/oom_score_adj"

// exitCode returns the exit code as shells do: 128 plus the signal if one killed the process.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}
