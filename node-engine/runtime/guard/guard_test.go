package guard

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

var key = wire.Key{Instance: "acme/a.d.s.d#0", Epoch: 7}

// TestKillsWithoutAClient closes the only client and waits for the kill.
func TestKillsWithoutAClient(t *testing.T) {
	dir, c := ensure(t)
	v := startVictim(t)
	lease := 300 * time.Millisecond
	began := time.Now()
	if err := c.Set(t.Context(), key, v.cgroup, began.Add(lease)); err != nil {
		t.Fatal(err)
	}
	guard := pidOf(t, dir)
	c.Close()
	v.wait(t)
	if d := time.Since(began); d < lease {
		t.Errorf("time until the kill: got %s, want at least %s", d, lease)
	}
	t.Logf("killed %s after the lease", time.Since(began)-lease)
	waitGone(t, guard)
	if _, err := os.Stat(filepath.Join(dir, socketName)); err == nil {
		t.Error("socket after the guard ended: got a file, want none")
	}
}

// TestKillsAfterALateStart: a start was pending at the deadline, and the engine ended before the
// process appeared.
func TestKillsAfterALateStart(t *testing.T) {
	dir, c := ensure(t)
	g := newGroup(t)
	other := startVictim(t)
	end := time.Now().Add(50 * time.Millisecond)
	if err := c.Set(t.Context(), key, g.Path(), end); err != nil {
		t.Fatal(err)
	}
	// When this process has been killed, the guard has checked the empty group too.
	if err := c.Set(t.Context(), wire.Key{Instance: key.Instance, Epoch: 8}, other.cgroup, end); err != nil {
		t.Fatal(err)
	}
	other.wait(t)
	guard := pidOf(t, dir)
	c.Close()
	late := launchIn(t, g)
	late.wait(t)
	waitGone(t, guard)
}

// TestEmptyGroupIsDroppedAfterStartTimeout: the guard ends if nothing was ever started.
func TestEmptyGroupIsDroppedAfterStartTimeout(t *testing.T) {
	cg, err := cgroup.Mounted()
	if err != nil {
		t.Fatal(err)
	}
	root, err := os.OpenRoot(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	now := boottime()
	empty := target{fmt.Sprintf("/treeline-test-guard-%d-empty", os.Getpid())}
	s := &server{root: root, cg: cg, held: map[string]deadline{
		"long ago": {empty, now - int64(startTimeout)},
		"just now": {empty, now},
		"later":    {empty, now + int64(time.Hour)},
	}}
	s.killDue()
	if _, ok := s.held["long ago"]; ok || len(s.held) != 2 {
		t.Errorf("deadlines: got %v, want those just due and later", s.held)
	}
	if at := s.next(); at != s.killedAt+int64(retryPause) {
		t.Errorf("pause until the next kill: got %s, want %s", time.Duration(at-s.killedAt), retryPause)
	}
}

func TestLiftPreventsTheKill(t *testing.T) {
	_, c := ensure(t)
	dies := startVictim(t)
	// The second Set must replace the first before its deadline.
	var lives victim
	var soon time.Time
	for lease := time.Second; ; lease *= 2 {
		lives, soon = startVictim(t), time.Now().Add(lease)
		for _, end := range []time.Time{soon, time.Now().Add(time.Hour)} {
			if err := c.Set(t.Context(), key, lives.cgroup, end); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().Before(soon) {
			break
		}
	}
	if err := c.Set(t.Context(), wire.Key{Instance: key.Instance, Epoch: 8}, dies.cgroup, soon); err != nil {
		t.Fatal(err)
	}
	dies.wait(t)
	if err := c.Lift(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	held, err := c.List(t.Context())
	if err != nil || len(held) != 0 {
		t.Errorf("deadlines: got %v (%v), want none", held, err)
	}
	if err := lives.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("signal the process whose deadline was lifted: got %v, want that it lives", err)
	}
}

// TestNewGuardHasTheDeadlines kills the guard. The next order starts another one.
func TestNewGuardHasTheDeadlines(t *testing.T) {
	dir, c := ensure(t)
	v := startVictim(t)
	end := time.Now().Add(500 * time.Millisecond)
	if err := c.Set(t.Context(), key, v.cgroup, end); err != nil {
		t.Fatal(err)
	}
	first := pidOf(t, dir)
	_ = syscall.Kill(first, syscall.SIGKILL)
	waitGone(t, first)
	held, err := c.List(t.Context())
	if err != nil || held[key.String()].Target.Cgroup != v.cgroup && time.Now().Before(end) {
		t.Fatalf("deadlines of the second guard: got %v (%v), want those of the first", held, err)
	}
	if pidOf(t, dir) == first {
		t.Fatal("guard after the kill: got the same process, want another")
	}
	v.wait(t)
}

func TestOneGuardForManyClients(t *testing.T) {
	dir, _ := ensure(t)
	first := pidOf(t, dir)
	c := New(dir)
	defer c.Close()
	if err := c.Set(t.Context(), key, "/", time.Now()); err == nil {
		t.Error("guard the root cgroup: got no error, want one")
	}
	if got := pidOf(t, dir); got != first {
		t.Errorf("guard after a second client: got process %d, want %d", got, first)
	}
}

func ensure(t *testing.T) (dir string, c *Client) {
	t.Helper()
	programtest.NeedRoot(t)
	// Longer than a socket's path may be.
	dir = filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	c = New(dir)
	if err := c.Lift(t.Context(), key); err != nil || pidOf(t, dir) != 0 {
		t.Errorf("Lift without a guard: got %v, guard %d; want neither", err, pidOf(t, dir))
	}
	if _, err := c.List(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		if pid := pidOf(t, dir); pid != 0 {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			waitGone(t, pid)
		}
	})
	return dir, c
}

type victim struct {
	cmd    *exec.Cmd
	cgroup string
	up     chan error // its first line was read, or it ended before
	done   chan error
}

var victims int

// startVictim starts a process that ignores SIGTERM and has a child.
func startVictim(t *testing.T) victim {
	t.Helper()
	return startIn(t, newGroup(t))
}

func newGroup(t *testing.T) cgroup.Group {
	t.Helper()
	cg, err := cgroup.Mounted()
	if err != nil {
		t.Fatal(err)
	}
	victims++
	g, err := cg.Create(fmt.Sprintf("/treeline-test-guard-%d-%d", os.Getpid(), victims), cgroup.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := g.Remove(); err != nil {
			t.Error(err)
		}
	})
	return g
}

func startIn(t *testing.T, g cgroup.Group) victim {
	t.Helper()
	v := launchIn(t, g)
	if err := <-v.up; err != nil {
		t.Fatal(err)
	}
	return v
}

// launchIn is startIn without the wait until the process runs: it may be killed before.
func launchIn(t *testing.T, g cgroup.Group) victim {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; sleep 1000 & echo up; while :; do wait; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	v := victim{cmd: cmd, cgroup: g.Path(), up: make(chan error, 1), done: make(chan error, 1)}
	go func() {
		_, err := bufio.NewReader(out).ReadString('\n')
		v.up <- err
		v.done <- cmd.Wait()
	}()
	t.Cleanup(func() {
		if err := g.Kill(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		<-v.done
	})
	return v
}

func (v victim) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-v.done:
		v.done <- err
	case <-time.After(time.Minute):
		t.Fatal("the guard did not kill the process within a minute")
	}
}

// pidOf returns the process of a directory's guard, by its command line; 0 if there is none.
func pidOf(t *testing.T, dir string) int {
	t.Helper()
	entries, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join("/proc", e.Name(), "cmdline"))
		if err == nil && string(b) == name+"\x00"+dir+"\x00" {
			var pid int
			fmt.Sscan(e.Name(), &pid)
			return pid
		}
	}
	return 0
}

func waitGone(t *testing.T, pid int) {
	t.Helper()
	late := time.After(time.Minute)
	for syscall.Kill(pid, 0) == nil {
		select {
		case <-late:
			t.Fatalf("guard %d runs for a minute, want it to end", pid)
		case <-time.After(10 * time.Millisecond): // it is no child of this process, so there is no event
		}
	}
}
