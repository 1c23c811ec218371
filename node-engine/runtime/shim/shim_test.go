package shim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/programtest"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

func TestMain(m *testing.M) {
	Main("test-shim", func(p Plan, _ string, g cgroup.Group) (*exec.Cmd, ExitCodeOf, error) {
		cmd, log, err := p.Command()
		if err != nil {
			return nil, nil, err
		}
		defer log.Close()
		if slices.Contains(p.Env, "SLOW=1") {
			time.Sleep(300 * time.Millisecond) // a second shim begins meanwhile
		}
		return cmd, nil, Launch(cmd, g, nil)
	})
	os.Exit(m.Run())
}

// created returns a created workload, which ends with the test.
func created(t *testing.T, p Plan) (*Workloads, runtime.Workload) {
	t.Helper()
	programtest.NeedRoot(t)
	parent := fmt.Sprintf("/treeline-test/%s-%d", t.Name(), os.Getpid())
	r, err := Open(Config{Name: "test-shim", StateDir: t.TempDir(), CgroupParent: parent, LogLimit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	w := runtime.Workload{Key: wire.Key{Instance: "t/a.d.s.d#0", Epoch: 1}, Attempt: 1}
	t.Cleanup(func() {
		if err := errors.Join(r.Stop(context.Background(), w.Key, 0), r.Close(), r.cg.Group(parent).Remove()); err != nil {
			t.Error(err)
		}
	})
	if err := r.Put(w, func() error { return nil }, func(string) (Plan, error) { return p, nil }); err != nil {
		t.Fatal(err)
	}
	return r, w
}

// TestTwoShimsStartOneProcess: an engine is killed while the shim that it launched starts the workload, and the next
// engine launches another shim.
func TestTwoShimsStartOneProcess(t *testing.T) {
	r, w := created(t, Plan{UID: 65534, GID: 65534, Env: []string{"SLOW=1"}, Args: []string{"/bin/sh", "-c", "echo started; exec sleep 1000"}})
	var both sync.WaitGroup
	for range 2 {
		both.Go(func() {
			if err := r.launch(t.Context(), runtime.ID(w.Key)); err != nil {
				t.Error(err)
			}
		})
	}
	both.Wait()
	st, err := r.state(runtime.ID(w.Key))
	if err != nil || !st.run.Main.alive() || !st.run.Shim.alive() {
		t.Fatalf("state after two shims: got %+v (%v), want a process and its shim", st.run, err)
	}
	if err := r.Kill(t.Context(), w.Key, 0); err != nil { // the log is complete then
		t.Fatal(err)
	}
	from, err := r.Logs(t.Context(), w.Key, 10, false)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	if text, err := io.ReadAll(from); err != nil || strings.Count(string(text), "started") != 1 {
		t.Errorf("log: got %q (%v), want one process that started", text, err)
	}
}

// TestWorkloadOutlivesItsShim: the exit of a workload whose shim was killed is still reported,
// without its code.
func TestWorkloadOutlivesItsShim(t *testing.T) {
	r, w := created(t, Plan{UID: 65534, GID: 65534, Args: []string{"/bin/sleep", "1000"}})
	if err := r.Start(t.Context(), w.Key); err != nil {
		t.Fatal(err)
	}
	exits := make(chan runtime.Exit)
	go r.Watch(t.Context(), exits)
	st, err := r.state(runtime.ID(w.Key))
	if err != nil {
		t.Fatal(err)
	}
	_ = syscall.Kill(st.run.Shim.PID, syscall.SIGKILL)
	if err := st.run.Shim.wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	list, err := r.List(t.Context())
	if err != nil || len(list) != 1 || list[0].PID != st.run.Main.PID || list[0].Phase != wire.WorkloadRunning {
		t.Fatalf("List: got %+v (%v), want process %d running", list, err, st.run.Main.PID)
	}
	_ = syscall.Kill(st.run.Main.PID, syscall.SIGKILL)
	if e := <-exits; e.Key != w.Key || e.ExitCode != unknownExitCode {
		t.Errorf("exit: got %+v, want code %d", e, unknownExitCode)
	}
}
