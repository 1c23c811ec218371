package runtimetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/cgroup"
)

// executor returns the runtime as an Executor.
func (s *suite) executor() runtime.Executor { return s.rt.(runtime.Executor) }

// exec starts testbed/workload in the workload.
func (s *suite) exec(ctx context.Context, k wire.Key, p runtime.Process, args ...string) runtime.Running {
	s.Helper()
	p.Args = append([]string{s.Program}, args...)
	run, err := s.executor().Exec(ctx, k, p)
	if err != nil {
		s.Fatalf("exec %q: %v", args, err)
	}
	return run
}

func (s *suite) wantCode(run runtime.Running, want int) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if code, err := run.Wait(ctx); code != want || err != nil {
		s.Errorf("exec: got exit code %d and error %v, want %d", code, err, want)
	}
}

// procs returns the number of processes in the workload's control group.
func (s *suite) procs(k wire.Key) int {
	s.Helper()
	fs, err := cgroup.Mounted()
	if err != nil {
		s.Fatal(err)
	}
	pids, err := fs.Group(s.cgroupOf(k)).Procs()
	if err != nil {
		s.Fatal(err)
	}
	return len(pids)
}

// wantProcs waits until the workload's control group has this many processes.
func (s *suite) wantProcs(k wire.Key, want int) {
	s.Helper()
	got := -1
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if got = s.procs(k); got == want {
			return
		}
	}
	s.Fatalf("processes in the control group: got %d, want %d", got, want)
}

func execExitCode(s *suite) {
	w := s.runIgnoring()
	var out, errs bytes.Buffer
	s.wantCode(s.exec(s.Context(), w.Key, runtime.Process{Stdout: &out, Stderr: &errs}, "log", "0", "4"), 0)
	if out.String() != "line 0\nline 2\n" || errs.String() != "line 1\nline 3\n" {
		s.Errorf("output of an exec: got %q and %q, want lines 0 and 2, and 1 and 3", &out, &errs)
	}
	s.wantCode(s.exec(s.Context(), w.Key, runtime.Process{}, "exit", "7"), 7)
	s.wantProcs(w.Key, 1)
	if _, err := s.executor().Exec(s.Context(), w.Key, runtime.Process{Args: []string{s.Program + "-missing"}}); !errors.Is(err, api.ErrInvalid) {
		s.Errorf("exec of a missing program: got %v, want ErrInvalid", err)
	}
}

func execInput(s *suite) {
	w := s.runIgnoring()
	text := strings.Repeat("0123456789abcdef", 64<<10) // more than a pipe's buffer
	var out bytes.Buffer
	s.wantCode(s.exec(s.Context(), w.Key, runtime.Process{Stdin: strings.NewReader(text), Stdout: &out}, "cat"), 0)
	if out.String() != text {
		s.Errorf("output of cat: got %d bytes, want the %d of its input", out.Len(), len(text))
	}
	// A reader that never returns does not keep the exec from ending.
	in, keep := io.Pipe()
	defer keep.Close()
	s.wantCode(s.exec(s.Context(), w.Key, runtime.Process{Stdin: in}, "exit", "3"), 3)
}

// execTerminal runs a process in a terminal and changes its size.
func execTerminal(s *suite) {
	w := s.runIgnoring()
	out := &lines{}
	in, keys := io.Pipe()
	defer keys.Close()
	run := s.exec(s.Context(), w.Key, runtime.Process{TTY: true, Width: 91, Height: 17, Stdin: in, Stdout: out}, "size")
	out.wait(s, "91x17")
	if err := run.Resize(120, 40); err != nil {
		s.Errorf("resize: %v", err)
	}
	out.wait(s, "120x40")
	if _, err := io.WriteString(keys, "\x03"); err != nil { // Ctrl-C, which the terminal turns into SIGINT
		s.Error(err)
	}
	s.wantCode(run, 0)
	if err := run.Resize(1, 1); err != nil {
		s.Errorf("resize after the end: %v", err)
	}
}

// execIsNoMore compares what the kernel grants to an exec and to the workload.
func execIsNoMore(s *suite) {
	w := s.workload("ignore-term")
	w.Spec.Environment = []string{"COLOUR=green"}
	s.run(w)
	s.waitForLine(w.Key, "ignoring")
	pid := s.wantPhase(w.Key, wire.WorkloadRunning).PID
	var out bytes.Buffer
	s.wantCode(s.exec(s.Context(), w.Key, runtime.Process{Env: []string{"SHAPE=round"}, Stdout: &out}, "env"), 0)
	for _, want := range append(w.Env(), "COLOUR=green", "SHAPE=round") {
		if !strings.Contains(out.String(), want+"\n") {
			s.Errorf("environment of an exec: got %q, want %s in it", out.String(), want)
		}
	}
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	run := s.exec(ctx, w.Key, runtime.Process{}, "ignore-term")
	s.wantProcs(w.Key, 2)
	fs, err := cgroup.Mounted()
	if err != nil {
		s.Fatal(err)
	}
	pids, err := fs.Group(s.cgroupOf(w.Key)).Procs()
	if err != nil {
		s.Fatal(err)
	}
	other := pids[slices.IndexFunc(pids, func(p int) bool { return p != pid })]
	for _, field := range []string{"Uid", "Gid", "Groups", "NoNewPrivs", "CapEff", "CapPrm", "CapBnd", "CapInh", "CapAmb", "Seccomp"} {
		if a, b := statusOf(s, pid, field), statusOf(s, other, field); a != b {
			s.Errorf("%s of an exec: got %q, want the workload's %q", field, b, a)
		}
	}
	for _, ns := range []string{"net", "mnt", "pid", "ipc", "uts"} {
		a, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", pid, ns))
		b, _ := os.Readlink(fmt.Sprintf("/proc/%d/ns/%s", other, ns))
		if a != b || a == "" {
			s.Errorf("%s namespace of an exec: got %q, want the workload's %q", ns, b, a)
		}
	}
	score, err := os.ReadFile(fmt.Sprintf("/proc/%d/oom_score_adj", other))
	if got := strings.TrimSpace(string(score)); err != nil || got != fmt.Sprint(runtime.OOMScoreAdj) {
		s.Errorf("oom_score_adj of an exec: got %s (%v), want %d", got, err, runtime.OOMScoreAdj)
	}
	cancel()
	if _, err := run.Wait(s.Context()); !errors.Is(err, context.Canceled) {
		s.Errorf("wait after the exec's context ended: got %v, want its cause", err)
	}
}

func statusOf(s *suite, pid int, field string) string {
	s.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		s.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if value, ok := strings.CutPrefix(line, field+":"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// execEndsWithItsContext: the process and what it started are killed, also if they ignore signals,
// changed their session, or block on output that is not read.
func execEndsWithItsContext(s *suite) {
	w := s.runIgnoring()
	ctx, cancel := context.WithCancel(s.Context())
	never, keys := io.Pipe()
	screen, blocked := io.Pipe()
	defer keys.Close()
	defer screen.Close()
	runs := []runtime.Running{
		s.exec(ctx, w.Key, runtime.Process{Stdin: never}, "spawn", s.Program, "ignore-term"),
		s.exec(ctx, w.Key, runtime.Process{Stdout: blocked}, "log", "0"),
	}
	s.wantProcs(w.Key, 4)
	cancel()
	for _, run := range runs {
		if _, err := run.Wait(s.Context()); !errors.Is(err, context.Canceled) {
			s.Errorf("wait after the context ended: got %v, want its cause", err)
		}
	}
	s.wantProcs(w.Key, 1)
	s.wantPhase(w.Key, wire.WorkloadRunning)
}

// execLeavesNothing: what a process leaves behind is killed when it ends.
func execLeavesNothing(s *suite) {
	w := s.runIgnoring()
	s.wantCode(s.exec(s.Context(), w.Key, runtime.Process{Stdout: io.Discard}, "spawn", "-leave", s.Program, "ignore-term"), 0)
	s.wantProcs(w.Key, 1)
}

func execNeedsARunningWorkload(s *suite) {
	try := func(k wire.Key, when string) {
		s.Helper()
		if _, err := s.executor().Exec(s.Context(), k, runtime.Process{Args: []string{s.Program, "env"}}); !errors.Is(err, api.ErrNotFound) {
			s.Errorf("exec in a workload that %s: got %v, want ErrNotFound", when, err)
		}
	}
	try(newKey(), "does not exist")
	wantExit := s.watch()
	w := s.workload("exit", "0")
	s.create(w)
	try(w.Key, "was not started")
	s.run(w)
	wantExit(w, 0, false)
	try(w.Key, "has ended")
}

func execEndsWithItsWorkload(s *suite) {
	w := s.runIgnoring()
	run := s.exec(s.Context(), w.Key, runtime.Process{}, "ignore-term")
	s.wantProcs(w.Key, 2)
	s.stop(w.Key, 0)
	s.wantCode(run, 137)
}

// execEndsWithItsEngine abandons an exec as a killed engine does, and opens the runtime again.
func execEndsWithItsEngine(s *suite) {
	w := s.runIgnoring()
	s.exec(context.WithoutCancel(s.Context()), w.Key, runtime.Process{}, "ignore-term")
	s.wantProcs(w.Key, 2)
	abandoned := s.rt
	s.rt = s.open()
	defer abandoned.Close()
	s.wantProcs(w.Key, 1)
	s.wantPhase(w.Key, wire.WorkloadRunning)
	s.wantCode(s.exec(s.Context(), w.Key, runtime.Process{}, "exit", "5"), 5)
	// The runtime's own end ends its execs.
	run := s.exec(context.WithoutCancel(s.Context()), w.Key, runtime.Process{}, "ignore-term")
	s.wantProcs(w.Key, 2)
	s.restart()
	if _, err := run.Wait(s.Context()); err == nil {
		s.Error("wait after the runtime closed: got no error")
	}
	s.wantProcs(w.Key, 1)
}

// lines collects output.
type lines struct {
	mu   sync.Mutex // guards text
	text string
}

// Write implements io.Writer.
func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text += string(p)
	return len(p), nil
}

func (l *lines) wait(s *suite, want string) {
	s.Helper()
	for end := time.Now().Add(timeout); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		l.mu.Lock()
		found := strings.Contains(l.text, want)
		l.mu.Unlock()
		if found {
			return
		}
	}
	s.Fatalf("output of an exec: got %q, want %q in it", l.text, want)
}
