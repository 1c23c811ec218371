package runtimetest

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// Containerd is a containerd with a root, state and socket of its own.
type Containerd struct {
	Dir     string
	Address string
	cmd     *exec.Cmd
	t       testing.TB
}

// StartContainerd starts a containerd, which ends with the test.
func StartContainerd(t testing.TB) *Containerd {
	t.Helper()
	programtest.NeedRoot(t)
	programtest.Need(t, "containerd", "runc")
	dir, err := os.MkdirTemp("", "ctrd-") // short, because a socket's path may have 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	c := &Containerd{Dir: dir, Address: filepath.Join(dir, "c.sock"), t: t}
	t.Cleanup(func() {
		c.Kill()
		c.endShims()
		err := os.RemoveAll(dir)
		for end := time.Now().Add(timeout); err != nil && time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			err = os.RemoveAll(dir) // a shim that is ending may still have files there
		}
		if err != nil {
			t.Errorf("remove containerd's directory: %v", err)
		}
	})
	config := fmt.Sprintf(`version = 2
root = %q
state = %q
disabled_plugins = ["io.containerd.grpc.v1.cri"]
[grpc]
  address = %q
[ttrpc]
  address = %q
`, dir+"/root", dir+"/state", c.Address, c.Address+".ttrpc")
	if err := os.WriteFile(dir+"/config.toml", []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	c.Start()
	return c
}

// Start starts containerd and returns when it listens.
func (c *Containerd) Start() {
	c.t.Helper()
	log, err := os.OpenFile(c.Dir+"/log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		c.t.Fatal(err)
	}
	defer log.Close()
	_ = os.Remove(c.Address)
	c.cmd = exec.Command("containerd", "--config", c.Dir+"/config.toml")
	c.cmd.Stdout, c.cmd.Stderr = log, log
	if err := c.cmd.Start(); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	for ctx.Err() == nil {
		if conn, err := (&net.Dialer{}).DialContext(ctx, "unix", c.Address); err == nil {
			conn.Close()
			return
		}
		time.Sleep(20 * time.Millisecond) // containerd does not report when it listens
	}
	out, _ := os.ReadFile(c.Dir + "/log")
	c.t.Fatalf("containerd does not listen on %s after %s:\n%s", c.Address, timeout, out)
}

// endShims ends the shims that outlive this containerd. A shim without containers ends when
// containerd orders it, which a killed containerd does not. A shim that still has a container
// fails the test.
func (c *Containerd) endShims() {
	all, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range all {
		line, err := os.ReadFile(file)
		if err != nil || !strings.Contains(string(line), "\x00-address\x00"+c.Address) {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		children, _ := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if len(children) > 0 {
			c.t.Errorf("shim %d still has the processes %s", pid, children)
		}
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// Kill ends containerd with SIGKILL and waits for it.
func (c *Containerd) Kill() {
	if c.cmd == nil {
		return
	}
	_ = c.cmd.Process.Kill()
	_ = c.cmd.Wait()
	c.cmd = nil
}
