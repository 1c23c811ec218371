//go:build linux

package browser

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"

	"github.com/treeline-edge/treeline/testbed/gobuild"
	"github.com/treeline-edge/treeline/testbed/lab"
)

// programs names the directory with the programs of installations, in a network of its own.
const programs = "TREELINE_BROWSER_PROGRAMS"

// TestMain runs the tests in a network namespace with nothing but a loopback interface. Chromium ends
// connections when an interface of its namespace changes, and tests of other packages change the machine's.
func TestMain(m *testing.M) {
	lab.Main()
	if os.Geteuid() != 0 || os.Getenv(programs) != "" {
		os.Exit(m.Run())
	}
	code, err := inOwnNetwork()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func inOwnNetwork() (code int, err error) {
	bin := os.Getenv("TREELINE_LAB_BIN")
	if bin == "" {
		if bin, err = os.MkdirTemp("", "b"); err != nil {
			return 1, err
		}
		defer os.RemoveAll(bin)
		if err := os.Chmod(bin, 0o755); err != nil { // processes that are instances run as other users
			return 1, err
		}
		// Built here, where modules can be fetched.
		if err := gobuild.Build(context.Background(), bin+"/", lab.Programs()...); err != nil {
			return 1, err
		}
	}
	c := exec.Command("sh", append([]string{"-c", `ip link set lo up && exec "$@"`, "sh"}, os.Args...)...)
	c.Env = append(os.Environ(), programs+"="+bin, "TREELINE_LAB_BIN="+bin)
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	runtime.LockOSThread() // Pdeathsig is about the thread
	var exit *exec.ExitError
	if err := c.Run(); errors.As(err, &exit) {
		return max(1, exit.ExitCode()), nil
	} else if err != nil {
		return 1, err
	}
	return 0, nil
}
