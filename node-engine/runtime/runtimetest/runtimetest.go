// Package runtimetest is the test suite of runtime.Runtime. It runs testbed/workload in its
// modes on a real runtime, and checks the status that the runtime reports and what it leaves on
// the machine.
package runtimetest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

// timeout is how long an event may take.
const timeout = time.Minute

// Harness is an implementation under test.
type Harness struct {
	// Open creates a runtime over the same state, as a node engine does when it starts.
	Open func() (runtime.Runtime, error)
	// Spec returns a service that runs testbed/workload with args.
	Spec func(args ...string) api.Microservice
	// Program is the path of testbed/workload in the workloads.
	Program string
	// Broken is a service whose program cannot be started.
	Broken api.Microservice
	// Devices are the ids of two devices, sorted; none if workloads cannot have devices.
	Devices []string
	// Guest says that workloads are virtual machines: the kernel of the guest limits its memory and runs
	// its processes, exit codes end at 127, and a machine that is ended does not exit by itself.
	Guest bool
	// MemoryMB is the memory of a workload with a given limit; 0: 64 MiB.
	MemoryMB int64
	// Missing is a service whose code does not exist; Create fails with MissingReason.
	Missing       api.Microservice
	MissingReason api.Reason
	// Left returns the names of everything that belongs to the workload on the machine.
	Left func(k wire.Key) []string
}

// Run runs the suite. It calls factory once for each test. leftOut are prefixes of the names of tests
// that the runtime cannot pass.
func Run(t *testing.T, factory func(t *testing.T) Harness, leftOut ...string) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"CallsAreIdempotent", callsAreIdempotent},
		{"SpecIsListedAfterRestart", specIsListedAfterRestart},
		{"AdoptedAfterRestart", adoptedAfterRestart},
		{"ExitCode", exitCode},
		{"ExitWithoutWatcher", exitWithoutWatcher},
		{"NextAttemptReplaces", nextAttemptReplaces},
		{"ChangedDevicesReplace", changedDevicesReplace},
		{"EpochsAreSeparate", epochsAreSeparate},
		{"OutOfMemory", outOfMemory},
		{"CgroupHasLimits", cgroupHasLimits},
		{"KillAfterGrace", killAfterGrace},
		{"GraceOfZeroKills", graceOfZeroKills},
		{"KillKeepsTheRemains", killKeepsTheRemains},
		{"Environment", environment},
		{"KilledBeforeDaemons", killedBeforeDaemons},
		{"LogsTail", logsTail},
		{"LogsFollow", logsFollow},
		{"StartFails", startFails},
		{"CodeIsMissing", codeIsMissing},
		{"UnknownVirtualization", unknownVirtualization},
		{"PrivilegedIsRefused", privilegedIsRefused},
		{"CgroupKillEndsWorkload", cgroupKillEndsWorkload},
		{"TwentyAtOnce", twentyAtOnce},
		{"ExecExitCode", execExitCode},
		{"ExecInput", execInput},
		{"ExecTerminal", execTerminal},
		{"ExecIsNoMore", execIsNoMore},
		{"ExecEndsWithItsContext", execEndsWithItsContext},
		{"ExecLeavesNothing", execLeavesNothing},
		{"ExecNeedsARunningWorkload", execNeedsARunningWorkload},
		{"ExecEndsWithItsWorkload", execEndsWithItsWorkload},
		{"ExecEndsWithItsEngine", execEndsWithItsEngine},
		{"AttachInput", attachInput},
		{"AttachOutlivesItsEngine", attachOutlivesItsEngine},
		{"AttachTerminal", attachTerminal},
		{"AttachNeedsAnInput", attachNeedsAnInput},
		{"InputIsRefused", inputIsRefused},
	} {
		if slices.ContainsFunc(leftOut, func(prefix string) bool { return strings.HasPrefix(c.name, prefix) }) {
			continue
		}
		t.Run(c.name, func(t *testing.T) {
			h := factory(t)
			if h.Guest { // a machine boots for seconds on one processor
				t.Parallel()
			}
			s := &suite{T: t, Harness: h}
			s.rt = s.open()
			t.Cleanup(func() { s.rt.Close() }) // last, after the workloads were stopped
			c.test(s)
		})
	}
}

type suite struct {
	*testing.T
	Harness
	rt runtime.Runtime
}

var instances atomic.Int64

// newKey returns a placement that no other test has, also not one of another process, since a suite searches
// the machine for what is left of it.
func newKey() wire.Key {
	n := int(instances.Add(1))
	return wire.Key{
		Instance: api.Tenant("acme/lab").App(fmt.Sprintf("runtimetest-%d", os.Getpid()), "default").Service("workload", "default").Instance(n),
		Epoch:    api.EpochOf(api.Revision(n), 3),
	}
}

func (s *suite) open() runtime.Runtime {
	s.Helper()
	rt, err := s.Open()
	if err != nil {
		s.Fatal(err)
	}
	return rt
}

// restart closes the runtime and opens it again, as a restart of the node engine does.
func (s *suite) restart() {
	s.Helper()
	if err := s.rt.Close(); err != nil {
		s.Fatal(err)
	}
	s.rt = s.open()
}

func (s *suite) workload(args ...string) runtime.Workload {
	return runtime.Workload{Key: newKey(), Attempt: 1, Spec: s.Spec(args...)}
}

func (s *suite) create(w runtime.Workload) {
	s.Helper()
	s.Cleanup(func() { s.stop(w.Key, 0) })
	if err := s.rt.Create(s.Context(), w); err != nil {
		s.Fatalf("create %s: %v", w.Key, err)
	}
}

func (s *suite) run(w runtime.Workload) {
	s.Helper()
	s.create(w)
	if err := s.rt.Start(s.Context(), w.Key); err != nil {
		s.Fatalf("start %s: %v", w.Key, err)
	}
}

// runIgnoring starts a workload that ignores SIGTERM, and returns when it does.
func (s *suite) runIgnoring() runtime.Workload {
	s.Helper()
	w := s.workload("ignore-term")
	s.run(w)
	s.waitForLine(w.Key, "ignoring")
	return w
}

// stop stops the workload and checks that nothing is left of it.
func (s *suite) stop(k wire.Key, grace time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if err := s.rt.Stop(ctx, k, grace); err != nil {
		s.Errorf("stop %s: %v", k, err)
	}
	if st, found := s.find(k); found {
		s.Errorf("List after Stop: got %+v, want no %s", st, k)
	}
	if left := s.Left(k); len(left) > 0 {
		s.Errorf("left of %s after Stop: got %v, want nothing", k, left)
	}
}

func (s *suite) find(k wire.Key) (st runtime.Status, found bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	all, err := s.rt.List(ctx)
	if err != nil {
		s.Errorf("list: %v", err)
	}
	if i := slices.IndexFunc(all, func(x runtime.Status) bool { return x.Key == k }); i >= 0 {
		return all[i], true
	}
	return st, false
}

func (s *suite) wantPhase(k wire.Key, want wire.WorkloadPhase) runtime.Status {
	s.Helper()
	st, found := s.find(k)
	if !found || st.Phase != want {
		s.Fatalf("List: %s is listed: %t, phase %q; want phase %q", k, found, st.Phase, want)
	}
	return st
}

// wantExited checks the listed exit of a workload.
func (s *suite) wantExited(k wire.Key, code int, oom bool) {
	s.Helper()
	if st := s.wantPhase(k, wire.WorkloadExited); st.ExitCode != code || st.OOM != oom || st.PID != 0 {
		s.Errorf("List of the exited %s: got code %d, OOM %t, PID %d; want code %d, OOM %t, no PID", k, st.ExitCode, st.OOM, st.PID, code, oom)
	}
}

// watch starts a Watch. The returned function waits for the exit of a workload and checks it.
func (s *suite) watch() (wantExit func(w runtime.Workload, code int, oom bool)) {
	s.Helper()
	exits := make(chan runtime.Exit)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	rt := s.rt
	go func() { done <- rt.Watch(ctx, exits) }()
	s.Cleanup(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(timeout):
			s.Error("Watch did not return after its context ended")
		}
	})
	return func(w runtime.Workload, code int, oom bool) {
		s.Helper()
		want := runtime.Exit{Key: w.Key, Attempt: w.Attempt, ExitCode: code, OOM: oom}
		late := time.After(timeout)
		for {
			select {
			case e := <-exits:
				if e.Key != w.Key {
					continue
				}
				if e != want {
					s.Errorf("exit: got %+v, want %+v", e, want)
				}
				return
			case err := <-done:
				s.Fatalf("Watch returned early: %v", err)
			case <-late:
				s.Fatalf("no exit of %s within %s", w.Key, timeout)
			}
		}
	}
}

func (s *suite) logs(k wire.Key, tail int, follow bool) io.ReadCloser {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), timeout)
	s.Cleanup(cancel)
	r, err := s.rt.Logs(ctx, k, tail, follow)
	if err != nil {
		s.Fatalf("logs of %s: %v", k, err)
	}
	return r
}

// waitForLine waits until the workload has written a line that contains text.
func (s *suite) waitForLine(k wire.Key, text string) {
	s.Helper()
	r := s.logs(k, -1, true)
	defer r.Close()
	var all []string
	for sc := bufio.NewScanner(r); sc.Scan(); {
		if strings.Contains(sc.Text(), text) {
			return
		}
		all = append(all, sc.Text())
	}
	s.Fatalf("output of %s: got %q, want a line with %q", k, all, text)
}

func (s *suite) read(k wire.Key, tail int, follow bool) []string {
	s.Helper()
	r := s.logs(k, tail, follow)
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		s.Fatal(err)
	}
	return slices.Collect(strings.Lines(string(b)))
}

func (s *suite) wantLines(k wire.Key, tail int, follow bool, want int) {
	s.Helper()
	if got := len(s.read(k, tail, follow)); got != want {
		s.Errorf("log with tail %d, follow %t: got %d lines, want %d", tail, follow, got, want)
	}
}

func (s *suite) wantReason(err error, want api.Reason) {
	s.Helper()
	if e, ok := errors.AsType[*runtime.Error](err); !ok || e.Reason != want {
		s.Fatalf("got error %v (%T), want reason %s", err, err, want)
	}
	s.Log(err)
}

func callsAreIdempotent(s *suite) {
	w := s.workload("sleep")
	s.stop(w.Key, time.Second) // does not exist yet
	s.create(w)
	s.create(w)
	s.wantPhase(w.Key, wire.WorkloadCreated)
	s.run(w)
	pid := s.wantPhase(w.Key, wire.WorkloadRunning).PID
	s.run(w)
	if got := s.wantPhase(w.Key, wire.WorkloadRunning).PID; got != pid || pid == 0 {
		s.Errorf("PID after a second Create and Start: got %d, want %d", got, pid)
	}
	s.waitForLine(w.Key, "sleeping")
	s.stop(w.Key, timeout)
	s.stop(w.Key, timeout)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		s.Errorf("signal process %d after Stop: got %v, want ESRCH", pid, err)
	}
}

func specIsListedAfterRestart(s *suite) {
	w := s.workload("sleep")
	two := 2
	w.Attempt, w.Devices = 7, s.Devices
	w.Spec.ID, w.Spec.Name, w.Spec.Namespace = "id", "workload", "default"
	w.Spec.Environment = []string{"BIG=" + strings.Repeat("x", 20_000), "QUOTE=\"\n'"}
	w.Spec.Memory, w.Spec.VCPUs, w.Spec.Replicas, w.Spec.StopGrace = cmp.Or(s.MemoryMB, 64), 0.25, &two, 3
	w.Spec.Constraints = []api.Constraint{{Type: "clusters", Allowed: []string{"a", "b"}}}
	s.create(w)
	s.restart()
	st := s.wantPhase(w.Key, wire.WorkloadCreated)
	if st.Attempt != w.Attempt || !reflect.DeepEqual(st.Spec, w.Spec) || !slices.Equal(st.Devices, w.Devices) {
		s.Errorf("List: got attempt %d, %+v, %v\nwant attempt %d, %+v, %v", st.Attempt, st.Spec, st.Devices, w.Attempt, w.Spec, w.Devices)
	}
	if err := s.rt.Start(s.Context(), w.Key); err != nil {
		s.Errorf("start what an earlier engine created: %v", err)
	}
	s.wantPhase(w.Key, wire.WorkloadRunning)
}

// changedDevicesReplace creates a workload again with other devices, which replaces it unless it
// runs.
func changedDevicesReplace(s *suite) {
	if len(s.Devices) == 0 {
		return
	}
	w := s.workload("ignore-term")
	w.Devices = s.Devices[:1]
	s.create(w)
	w.Devices = s.Devices[1:]
	s.create(w)
	if st := s.wantPhase(w.Key, wire.WorkloadCreated); !slices.Equal(st.Devices, w.Devices) {
		s.Errorf("devices: got %v, want %v", st.Devices, w.Devices)
	}
	s.run(w)
	w.Devices = s.Devices[:1]
	if err := s.rt.Create(s.Context(), w); !errors.Is(err, api.ErrConflict) {
		s.Errorf("create with other devices while it runs: got %v, want ErrConflict", err)
	}
}

func adoptedAfterRestart(s *suite) {
	w := s.runIgnoring()
	pid := s.wantPhase(w.Key, wire.WorkloadRunning).PID
	s.restart()
	if got := s.wantPhase(w.Key, wire.WorkloadRunning).PID; got != pid {
		s.Errorf("PID after the restart: got %d, want %d", got, pid)
	}
	wantExit := s.watch()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		s.Fatal(err)
	}
	wantExit(w, 137, false)
}

func exitCode(s *suite) {
	wantExit := s.watch()
	for _, code := range []int{0, 1, 42} {
		w := s.workload("exit", fmt.Sprint(code))
		s.run(w)
		wantExit(w, code, false)
		s.wantExited(w.Key, code, false)
		if err := s.rt.Create(s.Context(), w); err != nil {
			s.Errorf("create the same attempt again: %v", err)
		}
		s.wantPhase(w.Key, wire.WorkloadExited)
	}
}

func exitWithoutWatcher(s *suite) {
	w := s.workload("exit", "9")
	s.run(w)
	s.restart()
	s.read(w.Key, -1, true) // ends when the workload has ended
	s.restart()
	s.wantExited(w.Key, 9, false)
	s.watch()(w, 9, false) // Watch reports exits before its start, so that none is missed after List
}

func nextAttemptReplaces(s *suite) {
	wantExit := s.watch()
	w := s.workload("exit", "3")
	s.run(w)
	wantExit(w, 3, false)
	w.Attempt++
	w.Spec = s.Spec("sleep")
	s.run(w)
	if st := s.wantPhase(w.Key, wire.WorkloadRunning); st.Attempt != w.Attempt {
		s.Errorf("attempt: got %d, want %d", st.Attempt, w.Attempt)
	}
	s.waitForLine(w.Key, "sleeping")
	s.stop(w.Key, timeout)
}

func epochsAreSeparate(s *suite) {
	a := s.workload("sleep")
	b := a
	b.Epoch++
	s.run(a)
	s.run(b)
	s.stop(a.Key, 0)
	s.wantPhase(b.Key, wire.WorkloadRunning)
}

func outOfMemory(s *suite) {
	wantExit := s.watch()
	w := s.workload("eat", "400")
	w.Spec.Memory = cmp.Or(s.MemoryMB, 32)
	s.run(w)
	if s.Guest { // its own kernel killed it
		s.read(w.Key, -1, true)
		if st := s.wantPhase(w.Key, wire.WorkloadExited); st.ExitCode == 0 || st.OOM {
			s.Errorf("exit without memory: got code %d, OOM %t, want a code, and OOM false", st.ExitCode, st.OOM)
		}
		return
	}
	wantExit(w, 137, true)
	s.restart()
	s.wantExited(w.Key, 137, true)
}

func (s *suite) cgroupOf(k wire.Key) string {
	s.Helper()
	path, err := s.rt.(runtime.Guarded).CgroupOf(s.Context(), k)
	if err != nil {
		s.Fatal(err)
	}
	return path
}

// cgroupHasLimits reads the limits of workloads from the kernel. A workload has limits even if
// its spec has no memory and vcpus, or too small ones, as clusters of earlier releases send.
func cgroupHasLimits(s *suite) {
	const defaultVCPUs = float64(runtime.DefaultMilliCPU) / 1000
	memory := cmp.Or(s.MemoryMB, 64)
	for _, c := range []struct {
		name     string
		memory   int64
		vcpus    float64
		wantMB   int64
		wantVCPU float64
	}{
		{"set", memory, 0.25, memory, 0.25},
		{"not set", 0, 0, runtime.DefaultMemoryMB, defaultVCPUs},
		{"negative", -1, -1, runtime.DefaultMemoryMB, defaultVCPUs},
		{"too small", memory, 0.0001, memory, 0.01}, // the kernel's minimum is 1 ms of 100
	} {
		w := s.workload("sleep")
		w.Spec.Memory, w.Spec.VCPUs = c.memory, c.vcpus
		s.run(w)
		if memory, vcpus := s.limitsOf(s.cgroupOf(w.Key)); memory != c.wantMB<<20 || vcpus != c.wantVCPU {
			s.Errorf("limits of the cgroup if the spec's are %s: got %d MiB and %g vCPUs, want %d and %g", c.name, memory>>20, vcpus, c.wantMB, c.wantVCPU)
		}
	}
}

// limitsOf returns the limits of a cgroup: bytes of memory, and vCPUs.
func (s *suite) limitsOf(path string) (memory int64, vcpus float64) {
	s.Helper()
	numbers := func(parts ...string) (out []int64) {
		b, err := os.ReadFile(filepath.Join(append([]string{"/sys/fs/cgroup"}, parts...)...))
		if err != nil {
			s.Fatal(err)
		}
		for _, f := range strings.Fields(string(b)) {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				s.Fatalf("%v: got %q, want a limit", parts, b)
			}
			out = append(out, n)
		}
		return out
	}
	fs, err := cgroup.Mounted()
	if err != nil {
		s.Fatal(err)
	}
	if fs.V2() {
		cpu := numbers(path, "cpu.max")
		return numbers(path, "memory.max")[0], float64(cpu[0]) / float64(cpu[1])
	}
	quota, period := numbers("cpu", path, "cpu.cfs_quota_us"), numbers("cpu", path, "cpu.cfs_period_us")
	return numbers("memory", path, "memory.limit_in_bytes")[0], float64(quota[0]) / float64(period[0])
}

func killAfterGrace(s *suite) {
	w := s.runIgnoring()
	const grace = 300 * time.Millisecond
	began := time.Now()
	s.stop(w.Key, grace)
	if d := time.Since(began); d < grace {
		s.Errorf("time until the kill: got %s, want at least %s", d, grace)
	}
}

func graceOfZeroKills(s *suite) {
	s.stop(s.runIgnoring().Key, 0)
	w := s.workload("sleep") // created, but never started
	s.create(w)
	s.stop(w.Key, timeout)
}

// killKeepsTheRemains ends workloads that are to be restarted: they have exited, and their logs are left.
func killKeepsTheRemains(s *suite) {
	wantExit := s.watch()
	w := s.workload("sleep")
	if err := s.rt.Kill(s.Context(), w.Key, timeout); err != nil {
		s.Errorf("kill a workload that does not exist: %v", err)
	}
	s.run(w)
	s.waitForLine(w.Key, "sleeping")
	for range 2 { // repeated, it does nothing
		if err := s.rt.Kill(s.Context(), w.Key, timeout); err != nil {
			s.Fatalf("kill %s: %v", w.Key, err)
		}
	}
	code := s.wantPhase(w.Key, wire.WorkloadExited).ExitCode
	wantExit(w, code, false)
	if lines := s.read(w.Key, -1, true); len(lines) == 0 {
		s.Error("log after Kill: got nothing, want its output")
	}
	w = s.runIgnoring()
	if err := s.rt.Kill(s.Context(), w.Key, 100*time.Millisecond); err != nil {
		s.Fatalf("kill %s, which ignores SIGTERM: %v", w.Key, err)
	}
	wantExit(w, 137, false)
}

func environment(s *suite) {
	w := s.workload("env")
	w.Spec.Environment = []string{"COLOUR=green", "TREELINE_EPOCH=forged"}
	w.Devices = s.Devices
	s.run(w)
	s.waitForLine(w.Key, "uid=")
	all := s.read(w.Key, -1, false)
	for _, want := range append(w.Env(), "COLOUR=green") {
		if !slices.Contains(all, want+"\n") {
			s.Errorf("environment: got %q, want %s in it", all, want)
		}
	}
	if slices.Contains(all, "TREELINE_EPOCH=forged\n") {
		s.Error("the SLA's TREELINE_EPOCH is in the environment, want the runtime's")
	}
	if slices.ContainsFunc(all, func(l string) bool { return strings.HasPrefix(l, "uid=0") }) {
		s.Error("the workload runs as root, want another user")
	}
}

// killedBeforeDaemons reads which processes the kernel kills first when memory is short.
func killedBeforeDaemons(s *suite) {
	pid := s.wantPhase(s.runIgnoring().Key, wire.WorkloadRunning).PID
	score := func(pid string) (n int) {
		b, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
		if err == nil {
			n, err = strconv.Atoi(strings.TrimSpace(string(b)))
		}
		if err != nil {
			s.Fatal(err)
		}
		return n
	}
	if got, own := score(strconv.Itoa(pid)), score("self"); got != runtime.OOMScoreAdj || got <= own {
		s.Errorf("oom_score_adj of the workload: got %d, want %d and more than the test's %d", got, runtime.OOMScoreAdj, own)
	}
}

func logsTail(s *suite) {
	wantExit := s.watch()
	w := s.workload("log", "0", "200")
	s.run(w)
	wantExit(w, 0, false)
	s.wantLines(w.Key, -1, true, 200) // follow, because the last output may still be copied
	s.wantLines(w.Key, 10, false, 10)
	s.restart()
	s.wantLines(w.Key, -1, false, 200)
	if _, err := s.rt.Logs(s.Context(), newKey(), 1, false); !errors.Is(err, api.ErrNotFound) {
		s.Errorf("logs of a missing workload: got %v, want ErrNotFound", err)
	}
}

func logsFollow(s *suite) {
	w := s.workload("log", "50", "25")
	s.run(w)
	s.wantLines(w.Key, -1, true, 25)
}

func startFails(s *suite) {
	w := runtime.Workload{Key: newKey(), Attempt: 1, Spec: s.Broken}
	s.Cleanup(func() { s.stop(w.Key, 0) })
	err := s.rt.Create(s.Context(), w)
	if err == nil {
		err = s.rt.Start(s.Context(), w.Key)
	}
	s.wantReason(err, api.ReasonStartFailed)
	w.Attempt++
	w.Spec = s.Spec("sleep")
	s.run(w)
}

func codeIsMissing(s *suite) {
	w := runtime.Workload{Key: newKey(), Attempt: 1, Spec: s.Missing}
	s.Cleanup(func() { s.stop(w.Key, 0) })
	s.wantReason(s.rt.Create(s.Context(), w), s.MissingReason)
}

func unknownVirtualization(s *suite) {
	w := s.workload("sleep")
	w.Spec.Virtualization = "abacus"
	s.wantReason(s.rt.Create(s.Context(), w), api.ReasonNoRuntime)
	info, err := s.rt.Info(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if v := s.Spec("sleep").Virtualization; !slices.Contains(info.Runtimes, v) || info.Version == "" {
		s.Errorf("Info: got %+v, want a version and the runtime %q", info, v)
	}
}

func privilegedIsRefused(s *suite) {
	w := s.workload("sleep")
	w.Spec.Privileged = true
	s.wantReason(s.rt.Create(s.Context(), w), api.ReasonPrivilege)
}

func cgroupKillEndsWorkload(s *suite) {
	if _, err := s.rt.(runtime.Guarded).CgroupOf(s.Context(), newKey()); !errors.Is(err, api.ErrNotFound) {
		s.Errorf("cgroup of a missing workload: got %v, want ErrNotFound", err)
	}
	wantExit := s.watch()
	w := s.runIgnoring()
	fs, err := cgroup.Mounted()
	if err != nil {
		s.Fatal(err)
	}
	if err := fs.Group(s.cgroupOf(w.Key)).Kill(s.Context()); err != nil {
		s.Fatal(err)
	}
	wantExit(w, 137, false)
}

func twentyAtOnce(s *suite) {
	ws := make([]runtime.Workload, 20)
	if s.Guest { // a machine that is emulated takes seconds of a processor
		ws = ws[:3]
	}
	each := func(action string, do func(w runtime.Workload) error) {
		var all sync.WaitGroup
		began := time.Now()
		for _, w := range ws {
			all.Go(func() {
				if err := do(w); err != nil {
					s.Errorf("%s %s: %v", action, w.Key, err)
				}
			})
		}
		all.Wait()
		s.Logf("%s %d in %s", action, len(ws), time.Since(began))
	}
	for i := range ws {
		ws[i] = s.workload("sleep")
		s.Cleanup(func() { s.stop(ws[i].Key, 0) })
	}
	each("create and start", func(w runtime.Workload) error {
		if err := s.rt.Create(s.Context(), w); err != nil {
			return err
		}
		return s.rt.Start(s.Context(), w.Key)
	})
	list, err := s.rt.List(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	pids := make(map[int]bool)
	for _, st := range list {
		if st.Phase == wire.WorkloadRunning {
			pids[st.PID] = true
		}
	}
	if len(pids) != len(ws) {
		s.Errorf("distinct processes that run: got %d, want %d", len(pids), len(ws))
	}
	each("stop", func(w runtime.Workload) error { return s.rt.Stop(s.Context(), w.Key, timeout) })
}
