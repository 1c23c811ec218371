package shim

import (
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"

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
		return cmd, nil, Launch(cmd, g, nil)
	})
	os.Exit(m.Run())
}

// TestWorkloadOutlivesItsShim: the exit of a workload whose shim was killed is still reported,
// without its code.
func TestWorkloadOutlivesItsShim(t *testing.T) {
	programtest.NeedRoot(t)
	parent := fmt.Sprintf("/treeline-test/shim-%d", os.Getpid())
	r, err := Open(Config{Name: "test-shim", StateDir: t.TempDir(), CgroupParent: parent, LogLimit: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.cg.Group(parent).Remove(); err != nil {
			t.Error(err)
		}
	})
	defer r.Close()
	w := runtime.Workload{Key: wire.Key{Instance: "t/a.d.s.d#0", Epoch: 1}, Attempt: 1}
	defer r.Stop(t.Context(), w.Key, 0)
	plan := func(string) (Plan, error) {
		return Plan{UID: 65534, GID: 65534, Args: []string{"/bin/sleep", "1000"}}, nil
	}
	if err := r.Put(w, func() error { return nil }, plan); err != nil {
		t.Fatal(err)
	}
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
