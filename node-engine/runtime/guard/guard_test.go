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

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
	"github.com/treeline-edge/treeline/node-engine/runtime/runtimetest"
)

func TestMain(m *testing.M) {
	Main()
	os.Exit(m.Run())
}

var key = wire.Key{Instance: "acme/a.d.s.d#0", Epoch: 7}

// TestKillsThoughTheEngineIsGone closes the only client and waits for the kill.
func TestKillsThoughTheEngineIsGone(t *testing.T) {
	dir, c := ensure(t)
	v := startVictim(t)
	lease := 300 * time.Millisecond
	began := time.Now()
	if err := c.Set(t.Context(), key, v.target, began.Add(lease)); err != nil {
		t.Fatal(err)
	}
	guard := pidOf(t, dir)
	c.Close()
	v.wait(t)
	if d := time.Since(began); d < lease {
		t.Errorf("killed after %s, lease %s", d, lease)
	}
	t.Logf("killed %s after the lease", time.Since(began)-lease)
	waitGone(t, guard)
	if _, err := os.Stat(filepath.Join(dir, socketName)); err == nil {
		t.Error("the guard ended and left its socket")
	}
}

// TestKillsWhatStartsTooLate: a start was under way at the deadline, and the
// engine dies before the process is there.
func TestKillsWhatStartsTooLate(t *testing.T) {
	dir, c := ensure(t)
	g := newGroup(t)
	other := startVictim(t)
	end := time.Now().Add(50 * time.Millisecond)
	if err := c.Set(t.Context(), key, runtime.Target{Cgroup: g.Path()}, end); err != nil {
		t.Fatal(err)
	}
	// When this one is dead, the guard has looked at the empty one too.
	if err := c.Set(t.Context(), wire.Key{Instance: key.Instance, Epoch: 8}, other.target, end); err != nil {
		t.Fatal(err)
	}
	other.wait(t)
	guard := pidOf(t, dir)
	c.Close()
	late := startIn(t, g)
	late.wait(t)
	waitGone(t, guard)
}

// TestLooksNoLongerThanAStartLasts: nothing was started, and the guard ends some day.
func TestLooksNoLongerThanAStartLasts(t *testing.T) {
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
	nobody := runtime.Target{Cgroup: fmt.Sprintf("/treeline-test-guard-%d-nobody", os.Getpid())}
	h := &helper{root: root, cg: cg, held: map[string]Deadline{
		"long ago": {nobody, now - int64(startWithin)},
		"just now": {nobody, now},
		"later":    {nobody, now + int64(time.Hour)},
	}}
	h.killDue()
	if _, ok := h.held["long ago"]; ok || len(h.held) != 2 {
		t.Errorf("held %v, want what is just due and what is not", h.held)
	}
	if at := h.next(); at != h.looked+int64(retryAfter) {
		t.Errorf("the next look is %s after this one, want %s", time.Duration(at-h.looked), retryAfter)
	}
}

func TestLiftedLives(t *testing.T) {
	_, c := ensure(t)
	dies := startVictim(t)
	// A renewed lease counts from its renewal, if that comes in time.
	var lives victim
	var soon time.Time
	for lease := time.Second; ; lease *= 2 {
		lives, soon = startVictim(t), time.Now().Add(lease)
		for _, end := range []time.Time{soon, time.Now().Add(time.Hour)} {
			if err := c.Set(t.Context(), key, lives.target, end); err != nil {
				t.Fatal(err)
			}
		}
		if time.Now().Before(soon) {
			break
		}
	}
	if err := c.Set(t.Context(), wire.Key{Instance: key.Instance, Epoch: 8}, dies.target, soon); err != nil {
		t.Fatal(err)
	}
	dies.wait(t)
	if err := c.Lift(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	held, err := c.List(t.Context())
	if err != nil || len(held) != 0 {
		t.Errorf("held %v (%v), want nothing", held, err)
	}
	if err := lives.cmd.Process.Signal(syscall.Signal(0)); err != nil {
		t.Errorf("the lifted one: %v", err)
	}
}

// TestGuardKilled kills the guard: the next order starts another one, which
// knows what the first one held.
func TestGuardKilled(t *testing.T) {
	dir, c := ensure(t)
	v := startVictim(t)
	end := time.Now().Add(500 * time.Millisecond)
	if err := c.Set(t.Context(), key, v.target, end); err != nil {
		t.Fatal(err)
	}
	first := pidOf(t, dir)
	_ = syscall.Kill(first, syscall.SIGKILL)
	waitGone(t, first)
	held, err := c.List(t.Context())
	if err != nil || held[key.String()].Target != v.target && time.Now().Before(end) {
		t.Fatalf("the second guard holds %v (%v)", held, err)
	}
	if pidOf(t, dir) == first {
		t.Fatal("there is no second guard")
	}
	v.wait(t)
}

func TestOneGuardForManyClients(t *testing.T) {
	dir, _ := ensure(t)
	first := pidOf(t, dir)
	c, err := Ensure(t.Context(), dir, "")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := pidOf(t, dir); got != first {
		t.Errorf("guard %d, then %d", first, got)
	}
	if err := c.Set(t.Context(), key, runtime.Target{Cgroup: "/"}, time.Now()); err == nil {
		t.Error("the root cgroup is taken for a target")
	}
}

func ensure(t *testing.T) (dir string, c *Client) {
	t.Helper()
	runtimetest.NeedRoot(t)
	// Deeper than a socket's path may be long.
	dir = filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	c, err := Ensure(t.Context(), dir, "")
	if err != nil {
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
	target runtime.Target
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
	cmd := exec.Command("/bin/sh", "-c", "trap '' TERM; sleep 1000 & echo up; while :; do wait; done")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := g.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	v := victim{cmd: cmd, target: runtime.Target{Cgroup: g.Path()}, done: make(chan error, 1)}
	t.Cleanup(func() {
		if err := g.Kill(t.Context()); err != nil && t.Context().Err() == nil {
			t.Error(err)
		}
		<-v.done
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	go func() { v.done <- cmd.Wait() }()
	return v
}

func (v victim) wait(t *testing.T) {
	t.Helper()
	select {
	case err := <-v.done:
		v.done <- err
	case <-time.After(time.Minute):
		t.Fatal("the guard did not kill")
	}
}

// pidOf is the guard of a directory, found by its command line; 0 if there is none.
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
			t.Fatalf("guard %d does not end", pid)
		case <-time.After(10 * time.Millisecond): // not our child, and nothing tells of its end
		}
	}
}
