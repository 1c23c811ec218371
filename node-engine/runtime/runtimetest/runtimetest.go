// Package runtimetest is what every runtime.Runtime has to pass, on the real
// engine. It runs testbed/workload in its modes and looks at what the runtime
// says and at what is left on the machine.
package runtimetest

import (
	"bufio"
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

// patience is how long an event may take before its absence is a failure.
const patience = time.Minute

// Harness is one implementation under test.
type Harness struct {
	// Open makes a new runtime object over the same engine and state, as a node
	// engine does when it starts.
	Open func() (runtime.Runtime, error)
	// Spec is a service that runs testbed/workload with args.
	Spec func(args ...string) api.Microservice
	// Broken is a service whose program does not exist.
	Broken api.Microservice
	// Devices are two that workloads may be given, in order.
	Devices []string
	// Missing is a service whose code does not exist, refused with MissingReason.
	Missing       api.Microservice
	MissingReason api.Reason
	// Left names everything that is on the machine because of the workload.
	Left func(k wire.Key) []string
}

// Run runs the suite. The factory is called once for each test.
func Run(t *testing.T, factory func(t *testing.T) Harness) {
	for _, c := range []struct {
		name string
		test func(*suite)
	}{
		{"TwiceIsOnce", twiceIsOnce},
		{"SpecComesBack", specComesBack},
		{"AdoptedAfterRestart", adoptedAfterRestart},
		{"ExitCode", exitCode},
		{"ExitWhileNobodyWatched", exitWhileNobodyWatched},
		{"NextAttemptReplaces", nextAttemptReplaces},
		{"OtherDevicesReplace", otherDevicesReplace},
		{"EpochsAreApart", epochsAreApart},
		{"OutOfMemory", outOfMemory},
		{"LimitsInItsCgroup", limitsInItsCgroup},
		{"KillAfterGrace", killAfterGrace},
		{"GraceOfZeroKills", graceOfZeroKills},
		{"Environment", environment},
		{"KilledBeforeDaemons", killedBeforeDaemons},
		{"LogsTail", logsTail},
		{"LogsFollow", logsFollow},
		{"StartFails", startFails},
		{"CodeIsMissing", codeIsMissing},
		{"UnknownVirtualization", unknownVirtualization},
		{"PrivilegedIsRefused", privilegedIsRefused},
		{"CgroupKillEndsIt", cgroupKillEndsIt},
		{"TwentyAtOnce", twentyAtOnce},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := factory(t)
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

// newKey is a placement that no other test has.
func newKey() wire.Key {
	n := int(instances.Add(1))
	return wire.Key{
		Instance: api.Tenant("acme/lab").App("runtimetest", "default").Service("workload", "default").Instance(n),
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

// restart is what a node engine that died and came back does.
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

// stop stops the workload and checks that nothing is left of it.
func (s *suite) stop(k wire.Key, grace time.Duration) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := s.rt.Stop(ctx, k, grace); err != nil {
		s.Errorf("stop %s: %v", k, err)
	}
	if _, found := s.find(k); found {
		s.Errorf("%s is listed after Stop", k)
	}
	if left := s.Left(k); len(left) > 0 {
		s.Errorf("left of %s after Stop: %v", k, left)
	}
}

func (s *suite) find(k wire.Key) (runtime.Status, bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	all, err := s.rt.List(ctx)
	if err != nil {
		s.Errorf("list: %v", err)
	}
	i := slices.IndexFunc(all, func(x runtime.Status) bool { return x.Key == k })
	if i < 0 {
		return runtime.Status{}, false
	}
	return all[i], true
}

func (s *suite) wantPhase(k wire.Key, want wire.WorkloadPhase) runtime.Status {
	s.Helper()
	st, found := s.find(k)
	if !found {
		s.Fatalf("%s is not listed, want %s", k, want)
	}
	if st.Phase != want {
		s.Fatalf("%s is %s, want %s", k, st.Phase, want)
	}
	return st
}

// watch returns a function that waits for the exit of a workload.
func (s *suite) watch() (wait func(wire.Key) runtime.Exit) {
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
		case <-time.After(patience):
			s.Error("Watch goes on after its context ended")
		}
	})
	return func(k wire.Key) runtime.Exit {
		s.Helper()
		late := time.After(patience)
		for {
			select {
			case e := <-exits:
				if e.Key == k {
					return e
				}
			case err := <-done:
				s.Fatalf("Watch ended: %v", err)
			case <-late:
				s.Fatalf("no exit of %s was reported", k)
			}
		}
	}
}

// line waits until the workload has written a line that contains text.
func (s *suite) line(k wire.Key, text string) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	r, err := s.rt.Logs(ctx, k, -1, true)
	if err != nil {
		s.Fatalf("logs of %s: %v", k, err)
	}
	defer r.Close()
	var all []string
	for sc := bufio.NewScanner(r); sc.Scan(); {
		if strings.Contains(sc.Text(), text) {
			return sc.Text()
		}
		all = append(all, sc.Text())
	}
	s.Fatalf("%s never wrote %q, only %q", k, text, all)
	return ""
}

func (s *suite) logs(k wire.Key, tail int) string { return s.read(k, tail, false) }

// follow is a workload's log to its end.
func (s *suite) follow(k wire.Key) string { return s.read(k, -1, true) }

func (s *suite) read(k wire.Key, tail int, follow bool) string {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), patience)
	defer cancel()
	r, err := s.rt.Logs(ctx, k, tail, follow)
	if err != nil {
		s.Fatalf("logs of %s: %v", k, err)
	}
	defer r.Close()
	b, err := io.ReadAll(r)
	if err != nil {
		s.Fatal(err)
	}
	return string(b)
}

func (s *suite) wantReason(err error, want api.Reason) {
	s.Helper()
	e, ok := errors.AsType[*runtime.Error](err)
	if !ok {
		s.Fatalf("error %v (%T) carries no reason, want %s", err, err, want)
	}
	if e.Reason != want {
		s.Fatalf("reason %s (%v), want %s", e.Reason, e.Err, want)
	}
	s.Logf("%s: %v", e.Reason, e.Err)
}

func twiceIsOnce(s *suite) {
	w := s.workload("sleep")
	s.stop(w.Key, time.Second) // nothing exists yet
	s.create(w)
	s.create(w)
	s.wantPhase(w.Key, wire.WorkloadCreated)
	s.run(w)
	pid := s.wantPhase(w.Key, wire.WorkloadRunning).PID
	s.run(w)
	if got := s.wantPhase(w.Key, wire.WorkloadRunning).PID; got != pid || pid == 0 {
		s.Errorf("pid %d after creating and starting again, was %d", got, pid)
	}
	s.line(w.Key, "sleeping")
	s.stop(w.Key, patience)
	s.stop(w.Key, patience)
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		s.Errorf("process %d is there after Stop: %v", pid, err)
	}
}

func specComesBack(s *suite) {
	w := s.workload("sleep")
	two := 2
	w.Attempt, w.Devices = 7, s.Devices
	w.Spec.ID, w.Spec.Name, w.Spec.Namespace = "id", "workload", "default"
	w.Spec.Environment = []string{"BIG=" + strings.Repeat("x", 20_000), "QUOTE=\"\n'"}
	w.Spec.Memory, w.Spec.VCPUs, w.Spec.Replicas, w.Spec.StopGrace = 64, 0.25, &two, 3
	w.Spec.Constraints = []api.Constraint{{Type: "clusters", Allowed: []string{"a", "b"}}}
	s.create(w)
	s.restart()
	st := s.wantPhase(w.Key, wire.WorkloadCreated)
	if st.Attempt != w.Attempt || !reflect.DeepEqual(st.Spec, w.Spec) || !slices.Equal(st.Devices, w.Devices) {
		s.Errorf("listed attempt %d, %+v, %v\nwant attempt %d, %+v, %v", st.Attempt, st.Spec, st.Devices, w.Attempt, w.Spec, w.Devices)
	}
	if err := s.rt.Start(s.Context(), w.Key); err != nil {
		s.Errorf("start what an earlier engine created: %v", err)
	}
	s.wantPhase(w.Key, wire.WorkloadRunning)
}

// otherDevicesReplace asks for what exists with other devices: it is made anew
// unless it runs.
func otherDevicesReplace(s *suite) {
	w := s.workload("ignore-term")
	w.Devices = s.Devices[:1]
	s.create(w)
	w.Devices = s.Devices[1:]
	s.create(w)
	if st := s.wantPhase(w.Key, wire.WorkloadCreated); !slices.Equal(st.Devices, w.Devices) {
		s.Errorf("it has %v, want %v", st.Devices, w.Devices)
	}
	s.run(w)
	other := w
	other.Devices = s.Devices[:1]
	if err := s.rt.Create(s.Context(), other); !errors.Is(err, api.ErrConflict) {
		s.Errorf("created with other devices while it runs: %v", err)
	}
}

func adoptedAfterRestart(s *suite) {
	w := s.workload("ignore-term")
	s.run(w)
	s.line(w.Key, "ignoring")
	before := s.wantPhase(w.Key, wire.WorkloadRunning)
	s.restart()
	after := s.wantPhase(w.Key, wire.WorkloadRunning)
	if after.PID != before.PID {
		s.Errorf("pid %d after the restart, was %d", after.PID, before.PID)
	}
	wait := s.watch()
	if err := syscall.Kill(after.PID, syscall.SIGKILL); err != nil {
		s.Fatal(err)
	}
	if e := wait(w.Key); e.ExitCode != 137 || e.Attempt != w.Attempt || e.OOM {
		s.Errorf("exit of the adopted: %+v, want code 137", e)
	}
}

func exitCode(s *suite) {
	wait := s.watch()
	for _, code := range []int{0, 1, 42} {
		w := s.workload("exit", fmt.Sprint(code))
		s.run(w)
		if e := wait(w.Key); e.ExitCode != code || e.Attempt != w.Attempt || e.OOM {
			s.Errorf("exit %+v, want code %d", e, code)
		}
		if st := s.wantPhase(w.Key, wire.WorkloadExited); st.ExitCode != code || st.PID != 0 || st.OOM {
			s.Errorf("listed %+v, want code %d", st, code)
		}
		if err := s.rt.Create(s.Context(), w); err != nil {
			s.Errorf("create the same attempt again: %v", err)
		}
		s.wantPhase(w.Key, wire.WorkloadExited)
	}
}

func exitWhileNobodyWatched(s *suite) {
	w := s.workload("exit", "9")
	s.run(w)
	if err := s.rt.Close(); err != nil {
		s.Fatal(err)
	}
	s.rt = s.open()
	// A follower ends when the workload has.
	r, err := s.rt.Logs(s.Context(), w.Key, -1, true)
	if err != nil {
		s.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, r)
	r.Close()
	s.restart()
	if st := s.wantPhase(w.Key, wire.WorkloadExited); st.ExitCode != 9 {
		s.Errorf("listed %+v, want code 9", st)
	}
	// Watch reports what it finds, so that nobody falls between List and Watch.
	if e := s.watch()(w.Key); e.ExitCode != 9 {
		s.Errorf("exit %+v, want code 9", e)
	}
}

func nextAttemptReplaces(s *suite) {
	wait := s.watch()
	w := s.workload("exit", "3")
	s.run(w)
	wait(w.Key)
	w.Attempt++
	w.Spec = s.Spec("sleep")
	s.run(w)
	st := s.wantPhase(w.Key, wire.WorkloadRunning)
	if st.Attempt != w.Attempt {
		s.Errorf("attempt %d, want %d", st.Attempt, w.Attempt)
	}
	s.line(w.Key, "sleeping")
	s.stop(w.Key, patience)
}

func epochsAreApart(s *suite) {
	a := s.workload("sleep")
	b := a
	b.Epoch++
	s.run(a)
	s.run(b)
	s.stop(a.Key, 0)
	s.wantPhase(b.Key, wire.WorkloadRunning)
}

func outOfMemory(s *suite) {
	wait := s.watch()
	w := s.workload("eat", "200")
	w.Spec.Memory = 32
	s.run(w)
	if e := wait(w.Key); !e.OOM || e.ExitCode != 137 {
		s.Errorf("exit %+v, want out of memory with code 137", e)
	}
	s.restart()
	if st := s.wantPhase(w.Key, wire.WorkloadExited); !st.OOM || st.ExitCode != 137 {
		s.Errorf("listed after a restart: %+v, want out of memory", st)
	}
}

// limitsInItsCgroup reads from the kernel what bounds a workload. One whose spec names
// no memory and no vcpus, or less than can be counted, is bounded too: a cluster of an
// earlier release sends such.
func limitsInItsCgroup(s *suite) {
	g, ok := s.rt.(runtime.Guarded)
	if !ok {
		s.Fatal("the runtime has no control groups")
	}
	for _, c := range []struct {
		name     string
		memory   int64
		vcpus    float64
		wantMB   int64
		wantVCPU float64
	}{
		{"named", 64, 0.25, 64, 0.25},
		{"absent", 0, 0, runtime.DefaultMemoryMB, float64(runtime.DefaultMilliCPU) / 1000},
		{"negative", -1, -1, runtime.DefaultMemoryMB, float64(runtime.DefaultMilliCPU) / 1000},
		{"tiny", 64, 0.0001, 64, 0.01}, // the kernel's least is 1 ms of 100
	} {
		w := s.workload("sleep")
		w.Spec.Memory, w.Spec.VCPUs = c.memory, c.vcpus
		s.run(w)
		target, err := g.CgroupOf(s.Context(), w.Key)
		if err != nil {
			s.Fatal(err)
		}
		memory, vcpus := limitsOf(s, target)
		if memory != c.wantMB<<20 || vcpus != c.wantVCPU {
			s.Errorf("%s: its cgroup %s is bounded at %d MiB and %g vCPUs, want %d and %g", c.name, target.Cgroup, memory>>20, vcpus, c.wantMB, c.wantVCPU)
		}
	}
}

// limitsOf reads what bounds a control group: bytes, and vCPUs.
func limitsOf(s *suite, t runtime.Target) (memory int64, vcpus float64) {
	s.Helper()
	read := func(parts ...string) []string {
		b, err := os.ReadFile(filepath.Join(append([]string{"/sys/fs/cgroup"}, parts...)...))
		if err != nil {
			s.Fatal(err)
		}
		return strings.Fields(string(b))
	}
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			s.Fatalf("no limit: %q", text)
		}
		return n
	}
	fs, err := cgroup.Mounted()
	if err != nil {
		s.Fatal(err)
	}
	if fs.V2() {
		cpu := read(t.Cgroup, "cpu.max")
		return number(read(t.Cgroup, "memory.max")[0]), float64(number(cpu[0])) / float64(number(cpu[1]))
	}
	quota, period := read("cpu", t.Cgroup, "cpu.cfs_quota_us"), read("cpu", t.Cgroup, "cpu.cfs_period_us")
	return number(read("memory", t.Cgroup, "memory.limit_in_bytes")[0]), float64(number(quota[0])) / float64(number(period[0]))
}

func killAfterGrace(s *suite) {
	w := s.workload("ignore-term")
	s.run(w)
	s.line(w.Key, "ignoring")
	const grace = 300 * time.Millisecond
	begin := time.Now()
	s.stop(w.Key, grace)
	if d := time.Since(begin); d < grace {
		s.Errorf("killed after %s, grace %s", d, grace)
	}
}

func graceOfZeroKills(s *suite) {
	w := s.workload("ignore-term")
	s.run(w)
	s.line(w.Key, "ignoring")
	s.stop(w.Key, 0)
	// Created but never started goes as well.
	w = s.workload("sleep")
	s.create(w)
	s.stop(w.Key, patience)
}

func environment(s *suite) {
	w := s.workload("env")
	w.Spec.Environment = []string{"COLOUR=green", "TREELINE_EPOCH=forged"}
	w.Devices = s.Devices
	s.run(w)
	s.line(w.Key, "uid=")
	all := strings.Split(s.logs(w.Key, -1), "\n")
	for _, want := range append(w.Env(), "COLOUR=green") {
		if !slices.Contains(all, want) {
			s.Errorf("%s is not in the environment %q", want, all)
		}
	}
	if slices.Contains(all, "TREELINE_EPOCH=forged") {
		s.Error("the SLA overrides TREELINE_EPOCH")
	}
	if slices.ContainsFunc(all, func(l string) bool { return strings.HasPrefix(l, "uid=0") }) {
		s.Error("the workload runs as root")
	}
}

// killedBeforeDaemons reads whom the kernel kills first when memory is short.
func killedBeforeDaemons(s *suite) {
	w := s.workload("ignore-term")
	s.run(w)
	s.line(w.Key, "ignoring")
	score := func(pid string) int {
		b, err := os.ReadFile("/proc/" + pid + "/oom_score_adj")
		if err != nil {
			s.Fatal(err)
		}
		n, err := strconv.Atoi(strings.TrimSpace(string(b)))
		if err != nil {
			s.Fatal(err)
		}
		return n
	}
	its, ours := score(strconv.Itoa(s.wantPhase(w.Key, wire.WorkloadRunning).PID)), score("self")
	if its != runtime.OOMScoreAdj || its <= ours {
		s.Errorf("its oom_score_adj is %d, want %d; ours is %d", its, runtime.OOMScoreAdj, ours)
	}
}

func logsTail(s *suite) {
	wait := s.watch()
	w := s.workload("log", "0", "200")
	s.run(w)
	wait(w.Key)
	if got := strings.Count(s.follow(w.Key), "\n"); got != 200 { // what wrote it may still be copying
		s.Errorf("%d lines, want 200", got)
	}
	if got := strings.Count(s.logs(w.Key, 10), "\n"); got != 10 {
		s.Errorf("%d lines of tail 10", got)
	}
	s.restart()
	if got := strings.Count(s.logs(w.Key, -1), "\n"); got != 200 {
		s.Errorf("%d lines after a restart, want 200", got)
	}
	if _, err := s.rt.Logs(s.Context(), newKey(), 1, false); !errors.Is(err, api.ErrNotFound) {
		s.Errorf("logs of nobody: %v, want not found", err)
	}
}

func logsFollow(s *suite) {
	w := s.workload("log", "50", "25")
	s.run(w)
	r, err := s.rt.Logs(s.Context(), w.Key, -1, true)
	if err != nil {
		s.Fatal(err)
	}
	defer r.Close()
	b, err := io.ReadAll(r) // returns because the workload ends
	if err != nil {
		s.Fatal(err)
	}
	if got := strings.Count(string(b), "\n"); got != 25 {
		s.Errorf("followed %d lines, want 25", got)
	}
}

func startFails(s *suite) {
	w := runtime.Workload{Key: newKey(), Attempt: 1, Spec: s.Broken}
	s.Cleanup(func() { s.stop(w.Key, 0) })
	err := s.rt.Create(s.Context(), w)
	if err == nil {
		err = s.rt.Start(s.Context(), w.Key)
	}
	s.wantReason(err, api.ReasonStartFailed)
	// The next attempt gets another chance.
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
		s.Errorf("info %+v does not offer %q", info, v)
	}
}

func privilegedIsRefused(s *suite) {
	w := s.workload("sleep")
	w.Spec.Privileged = true
	s.wantReason(s.rt.Create(s.Context(), w), api.ReasonPrivilege)
}

func cgroupKillEndsIt(s *suite) {
	g, ok := s.rt.(runtime.Guarded)
	if !ok {
		s.Fatal("the runtime cannot be guarded")
	}
	if _, err := g.CgroupOf(s.Context(), newKey()); !errors.Is(err, api.ErrNotFound) {
		s.Errorf("cgroup of nobody: %v, want not found", err)
	}
	wait := s.watch()
	w := s.workload("ignore-term")
	s.run(w)
	s.line(w.Key, "ignoring")
	target, err := g.CgroupOf(s.Context(), w.Key)
	if err != nil {
		s.Fatal(err)
	}
	killGroup(s, target)
	if e := wait(w.Key); e.ExitCode != 137 || e.OOM {
		s.Errorf("exit %+v, want code 137", e)
	}
}

func twentyAtOnce(s *suite) {
	const n = 20
	ws := make([]runtime.Workload, n)
	var all sync.WaitGroup
	begin := time.Now()
	for i := range ws {
		ws[i] = s.workload("sleep")
		s.Cleanup(func() { s.stop(ws[i].Key, 0) })
		all.Go(func() {
			if err := s.rt.Create(s.Context(), ws[i]); err != nil {
				s.Errorf("create %d: %v", i, err)
			}
			if err := s.rt.Start(s.Context(), ws[i].Key); err != nil {
				s.Errorf("start %d: %v", i, err)
			}
		})
	}
	all.Wait()
	s.Logf("%d created and started in %s", n, time.Since(begin))
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
	if len(pids) != n {
		s.Errorf("%d distinct processes run, want %d", len(pids), n)
	}
	for i := range ws {
		all.Go(func() {
			if err := s.rt.Stop(s.Context(), ws[i].Key, patience); err != nil {
				s.Errorf("stop %d: %v", i, err)
			}
		})
	}
	all.Wait()
}

func killGroup(s *suite, target runtime.Target) {
	s.Helper()
	fs, err := cgroup.Mounted()
	if err != nil {
		s.Fatal(err)
	}
	if err := fs.Group(target.Cgroup).Kill(s.Context()); err != nil {
		s.Fatal(err)
	}
}
