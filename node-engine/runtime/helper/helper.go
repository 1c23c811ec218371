// Package helper runs copies of the node engine's own binary beside it: shims and the guard.
// A helper has a session and a cgroup of its own, so that it outlives the engine. Helpers and
// the engine share state in JSON files.
//
//	helper.Main("treeline-shim", run)                                  // first in main
//	err := helper.Start(ctx, group, "treeline-shim", "/state/w/1") // in the engine
package helper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"golang.org/x/sys/unix"
)

const readyFD = 3 // the pipe on which a helper reports readyText or its error

const readyText = "ok"

// Main runs the helper and exits, if Start started this process under the name. Otherwise it
// returns at once. run calls ready to make Start return; if run fails before that, Start returns
// the error.
func Main(name string, run func(dir string, ready func()) error) {
	if len(os.Args) != 2 || os.Args[0] != name {
		return
	}
	unix.CloseOnExec(readyFD) // children of the helper must not keep the pipe open
	pipe := os.NewFile(readyFD, "ready")
	report := func(text string) {
		_, _ = io.WriteString(pipe, text)
		_ = pipe.Close()
	}
	if err := run(os.Args[1], func() { report(readyText) }); err != nil {
		report(err.Error())
		os.Exit(1)
	}
	os.Exit(0)
}

// Start starts this program in the cgroup as a helper with the name and a directory, and waits
// until it is ready. When ctx ends first, the helper may still start.
func Start(ctx context.Context, group cgroup.Group, name, dir string) error {
	exe, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the path of this program: %w", err)
	}
	ready, theirs, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	cmd := &exec.Cmd{
		Path: exe, Args: []string{name, dir}, Dir: "/", Env: []string{"GOMAXPROCS=1", "GOGC=50"},
		ExtraFiles:  []*os.File{theirs},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
	}
	err = group.Start(cmd, nil)
	_ = theirs.Close()
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	go cmd.Wait() // reaps the helper if it ends before this process
	defer context.AfterFunc(ctx, func() { _ = ready.SetReadDeadline(time.Unix(1, 0)) })()
	msg, err := io.ReadAll(ready)
	if err != nil {
		return fmt.Errorf("wait for %s: %w", name, errors.Join(err, context.Cause(ctx)))
	}
	if string(msg) != readyText {
		return errors.New(string(msg))
	}
	return nil
}

// BootID returns the identifier of the machine's current boot. State about processes is not valid
// after a reboot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}

// WriteJSON replaces a file atomically. It does not sync: the files describe processes, which
// do not survive a crash of the machine either.
func WriteJSON(dir *os.Root, path string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := dir.WriteFile(path+".new", b, 0o600); err != nil {
		return err
	}
	return dir.Rename(path+".new", path)
}

// ReadJSON reads a file into v. It fails with fs.ErrNotExist if there is none.
func ReadJSON(dir *os.Root, path string, v any) error {
	b, err := dir.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fmt.Errorf("decode %s: %w", path, err)
	}
	return nil
}
