package cgroup

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/treeline-edge/treeline/internal/programtest"
)

// TestKillEndsForkingProcesses kills the group of a process that forks continually, in the
// machine's own hierarchy and, on a hybrid machine, in that of version 2.
func TestKillEndsForkingProcesses(t *testing.T) {
	for name, f := range machine(t) {
		t.Run(name, func(t *testing.T) {
			path := fmt.Sprintf("/treeline-test-%d/kill", os.Getpid())
			g, err := f.Create(path, Limits{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				for _, p := range []string{path, filepath.Dir(path)} {
					if err := f.Group(p).Remove(); err != nil {
						t.Error(err)
					}
				}
			})
			cmd := exec.Command("/bin/sh", "-c", "echo up; while :; do sleep 100 & sleep 0.01; done")
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := g.Start(cmd, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := out.Read(make([]byte, 3)); err != nil {
				t.Fatal(err)
			}
			if pids, err := g.Procs(); err != nil || len(pids) == 0 || pids[0] != cmd.Process.Pid {
				t.Fatalf("Procs: got %v (%v), want %d in it", pids, err, cmd.Process.Pid)
			}
			if pids, _ := g.Procs(); slices.Contains(pids, os.Getpid()) {
				t.Fatal("Procs: got this process, want only the child")
			}
			go cmd.Wait()
			ctx := t.Context()
			if err := g.Kill(ctx); err != nil {
				t.Fatal(err)
			}
			if pids, err := g.Procs(); err != nil || len(pids) != 0 {
				t.Fatalf("Procs after Kill: got %v (%v), want none", pids, err)
			}
			if err := g.Remove(); err != nil {
				t.Fatal(err)
			}
			if g.Exists() {
				t.Fatal("Exists after Remove: got true, want false")
			}
		})
	}
}

// TestRemoveWaitsForTheLastProcess removes a group whose process ends later. Killed processes
// stay in a group until the kernel has cleaned up.
func TestRemoveWaitsForTheLastProcess(t *testing.T) {
	g, err := machine(t)["machine"].Create(fmt.Sprintf("/treeline-test-late-%d", os.Getpid()), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sleep", "3")
	if err := g.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	go cmd.Wait()
	if err := g.Remove(); err != nil || g.Exists() {
		t.Errorf("Remove: got %v, group exists: %t; want it removed", err, g.Exists())
	}
}

// TestKillSparesProcessesWithAThreadInTheGroup kills a group that contains a thread of this process,
// as it does while Start forks.
func TestKillSparesProcessesWithAThreadInTheGroup(t *testing.T) {
	f := machine(t)["machine"]
	g, err := f.Create(fmt.Sprintf("/treeline-test-thread-%d", os.Getpid()), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Remove()
	cmd := exec.Command("/bin/sleep", "1000")
	if err := g.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	if f.V2() { // the child is created within the group; no thread enters it
		defer cmd.Wait()
		if err := g.Kill(t.Context()); err != nil {
			t.Fatal(err)
		}
		return
	}
	entered, leave, left := make(chan error), make(chan struct{}), make(chan struct{})
	var visit func()
	visit = func() {
		runtime.LockOSThread() // and the thread ends with this goroutine
		if syscall.Gettid() == os.Getpid() {
			go visit() // gets another thread, because this goroutine holds the first
			<-left
			runtime.UnlockOSThread()
			return
		}
		defer close(left)
		tid := strconv.Itoa(syscall.Gettid())
		var failed error
		for _, d := range g.dirs() {
			failed = errors.Join(failed, write(d, "tasks", tid))
		}
		entered <- failed
		<-leave
		for _, d := range g.dirs() {
			_ = write(g.top(d), "tasks", tid)
		}
	}
	go visit()
	if err := <-entered; err != nil {
		t.Fatal(err)
	}
	defer func() { close(leave); <-left }()
	pids, err := g.Procs()
	if err != nil || !slices.Equal(pids, []int{cmd.Process.Pid}) {
		t.Errorf("Procs: got %v (%v), want only %d; this process is %d", pids, err, cmd.Process.Pid, os.Getpid())
		_, _ = cmd.Process.Kill(), cmd.Wait() // Group.Kill would kill this process
		return
	}
	go cmd.Wait()
	if err := g.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestMemoryLimitKills starts a process that exceeds its memory limit.
func TestMemoryLimitKills(t *testing.T) {
	f := machine(t)["machine"]
	path := fmt.Sprintf("/treeline-test-oom-%d", os.Getpid())
	g, err := f.Create(path, Limits{MemoryMB: 16, MilliCPU: 500, PIDs: 32})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Remove()
	cmd := exec.Command("/bin/sh", "-c", "x=$(head -c 100000000 /dev/zero | tr '\\0' x); echo $x")
	if err := g.Start(cmd, nil); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if g.OOMKills() == 0 {
		t.Error("OOMKills: got 0, want at least 1")
	}
	if err := g.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestVersion2Files checks the files that are written, in a directory that imitates a version 2
// hierarchy with all controllers.
func TestVersion2Files(t *testing.T) {
	dir := t.TempDir()
	for d, names := range map[string][]string{
		"":      {"cgroup.controllers", "cgroup.subtree_control"},
		"a":     {"cgroup.controllers", "cgroup.subtree_control"},
		"a/b":   {"cgroup.controllers", "cgroup.subtree_control"},
		"a/b/c": {"memory.max", "memory.swap.max", "cpu.max", "pids.max", "cgroup.procs"},
	} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
		for _, n := range names {
			content := ""
			if n == "cgroup.controllers" {
				content = "cpu memory pids"
			}
			if err := os.WriteFile(filepath.Join(dir, d, n), []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	g, err := unified(dir).Create("/a/b/c", Limits{MemoryMB: 64, MilliCPU: 250, PIDs: 10})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"memory.max": "67108864", "memory.swap.max": "0", "cpu.max": "25000 100000", "pids.max": "10",
	} {
		if got, _ := os.ReadFile(filepath.Join(g.dir("memory"), name)); string(got) != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
	for _, d := range []string{"", "a", "a/b"} {
		got, _ := os.ReadFile(filepath.Join(dir, d, "cgroup.subtree_control"))
		if !strings.HasPrefix(string(got), "+") {
			t.Errorf("cgroup.subtree_control of %q: got %q, want enabled controllers", d, got)
		}
	}
	if err := os.WriteFile(filepath.Join(g.dir("memory"), "memory.events"), []byte("low 0\noom 3\noom_kill 2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if n := g.OOMKills(); n != 2 {
		t.Errorf("OOMKills: got %d, want 2", n)
	}
}

func machine(t *testing.T) map[string]FS {
	t.Helper()
	f, err := Mounted()
	programtest.NeedRoot(t)
	programtest.Require(t, "control groups", err)
	out := map[string]FS{"machine": f}
	if hybrid := filepath.Join(root, "unified"); !f.V2() {
		if _, err := os.Stat(filepath.Join(hybrid, "cgroup.controllers")); err == nil {
			out["unified"] = unified(hybrid)
		}
	}
	return out
}

// TestRemoveCoversEveryHierarchy removes a group that exists in each hierarchy of the machine,
// as a container runtime leaves it.
func TestRemoveCoversEveryHierarchy(t *testing.T) {
	f, err := Mounted()
	if err != nil {
		t.Fatal(err)
	}
	g, err := f.Create(fmt.Sprintf("/treeline-test-every-%d", os.Getpid()), Limits{})
	if err != nil {
		t.Fatal(err)
	}
	parents := []string{root}
	if !f.V2() {
		all, err := os.ReadDir(root)
		if err != nil {
			t.Fatal(err)
		}
		parents = nil
		for _, h := range all {
			parents = append(parents, filepath.Join(root, h.Name()))
		}
	}
	for _, p := range parents {
		if err := os.MkdirAll(filepath.Join(p, g.Path(), "leaf"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Remove(); err != nil {
		t.Fatal(err)
	}
	for _, p := range parents {
		if _, err := os.Stat(filepath.Join(p, g.Path())); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s after Remove: got %v, want ErrNotExist", filepath.Join(p, g.Path()), err)
		}
	}
}
