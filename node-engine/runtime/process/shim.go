package process

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"golang.org/x/sys/unix"
)

// shimName is how a shim is called, and how ps shows it.
const shimName = "treeline-shim"

// ShimMain turns this process into a shim and never returns, if it was started
// as one. Every program that uses the runtime calls it first of all in main:
//
//	func main() {
//		process.ShimMain()
//		…
//
// A shim starts one workload, waits for it, kills what the workload leaves in
// its cgroup, and writes down how it ended. It holds no connection to the engine.
func ShimMain() {
	if len(os.Args) != 2 || os.Args[0] != shimName {
		return
	}
	unix.CloseOnExec(3) // or the workload would hold it open
	ready := os.NewFile(3, "ready")
	if err := shim(os.Args[1], ready); err != nil {
		fmt.Fprint(ready, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// launch starts the shim of a workload and returns when the workload runs.
func (r *Runtime) launch(ctx context.Context, id string) error {
	helpers, err := r.cg.Create(filepath.Join(r.cfg.CgroupParent, "shims"), cgroup.Limits{})
	if err != nil {
		return err
	}
	ours, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ours.Close()
	cmd := &exec.Cmd{
		Path:        r.cfg.Exe,
		Args:        []string{shimName, filepath.Join(r.cfg.StateDir, "w", id)},
		Dir:         "/",
		Env:         []string{"GOMAXPROCS=1", "GOGC=50"},
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = helpers.Start(cmd, nil)
	theirs.Close()
	if err != nil {
		return fmt.Errorf("start shim: %w", err)
	}
	go cmd.Wait() // it is ours to reap; the engine may be gone before it
	stop := context.AfterFunc(ctx, func() { _ = ours.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	msg, err := io.ReadAll(ours)
	if err != nil {
		return fmt.Errorf("wait for shim: %w", errors.Join(err, context.Cause(ctx)))
	}
	if string(msg) != "ok" {
		return because(api.ReasonStartFailed, "%s", msg)
	}
	return nil
}

// shim runs the workload whose folder is dir and says "ok" once it runs.
func shim(dir string, ready io.WriteCloser) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	var p plan
	if err := readJSON(root, workloadFile, &p); err != nil {
		return err
	}
	var now run
	if now.Shim, err = processOf(os.Getpid()); err != nil {
		return err
	}
	if err := writeJSON(root, runFile, now); err != nil {
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
		err = writeJSON(root, runFile, now)
	}
	if err != nil {
		_ = group.Kill(context.Background())
		return err
	}
	fmt.Fprint(ready, "ok")
	ready.Close()

	_ = cmd.Wait()
	ended := exit{Code: exitCode(cmd.ProcessState), OOM: group.OOMKills() > 0}
	ended.OOM = ended.OOM && ended.Code == 128+int(syscall.SIGKILL)
	// As in a container, nobody outlives the first process.
	if err := group.Kill(context.Background()); err != nil {
		return err
	}
	return writeJSON(root, exitFile, ended)
}

// start starts the workload as an unprivileged leader of its own session, in
// its cgroup, unable to gain rights.
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
	// The workload inherits its score from this process, which then takes back its own.
	was, err := oomScore()
	if err == nil {
		err = setOOMScore(runtime.OOMScoreAdj)
	}
	if err != nil {
		return nil, fmt.Errorf("have the kernel kill the workload before the daemons: %w", err)
	}
	defer setOOMScore(was)
	err = group.Start(cmd, func() error {
		return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
	})
	return cmd, err
}

const oomScoreFile = "/proc/self/oom_score_adj"

func oomScore() (int, error) {
	b, err := os.ReadFile(oomScoreFile)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}

func setOOMScore(n int) error { return os.WriteFile(oomScoreFile, []byte(strconv.Itoa(n)), 0) }

// exitCode is what a shell would say: 128 plus the signal for one that was killed.
func exitCode(s *os.ProcessState) int {
	if ws, ok := s.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return s.ExitCode()
}
