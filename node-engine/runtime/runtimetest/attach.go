package runtimetest

import (
	"errors"
	"io"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

func (s *suite) attach(k wire.Key, terminal bool) runtime.Input {
	s.Helper()
	in, err := s.rt.(runtime.Attacher).Attach(s.Context(), k, terminal)
	if err != nil {
		s.Fatalf("attach to %s: %v", k, err)
	}
	return in
}

func (s *suite) write(in io.Writer, text string) {
	s.Helper()
	if _, err := io.WriteString(in, text); err != nil {
		s.Fatalf("write %q to the workload: %v", text, err)
	}
}

// attachInput writes from two engines. The input ends only with End.
func attachInput(s *suite) {
	w := s.workload("cat")
	w.Spec.Stdin = true
	wantExit := s.watch()
	s.run(w)
	in := s.attach(w.Key, false)
	s.write(in, "one\n")
	s.waitForLine(w.Key, "one")
	_ = in.Close()
	if _, err := s.rt.(runtime.Attacher).Attach(s.Context(), w.Key, true); !errors.Is(err, api.ErrConflict) {
		s.Errorf("attach to a terminal that the workload has not: got %v, want ErrConflict", err)
	}
	in = s.attach(w.Key, false)
	s.write(in, "two\n")
	if err := in.End(s.Context()); err != nil {
		s.Errorf("end the input: %v", err)
	}
	wantExit(w, 0, false)
	if got := s.read(w.Key, -1, false); !slices.Equal(got, []string{"one\n", "two\n"}) {
		s.Errorf("output of a workload that copies its input: got %q, want one and two", got)
	}
	if _, err := s.rt.(runtime.Attacher).Attach(s.Context(), w.Key, false); !errors.Is(err, api.ErrNotFound) {
		s.Errorf("attach to a workload that has ended: got %v, want ErrNotFound", err)
	}
	w.Attempt++
	s.run(w)
	in = s.attach(w.Key, false)
	defer in.Close()
	s.write(in, "three\n")
	s.waitForLine(w.Key, "three")
}

func attachOutlivesItsEngine(s *suite) {
	w := s.workload("cat")
	w.Spec.Stdin = true
	s.run(w)
	in := s.attach(w.Key, false)
	s.write(in, "one\n")
	s.waitForLine(w.Key, "one")
	s.restart()
	_ = in.Close() // the kernel closes it when the engine ends
	s.wantPhase(w.Key, wire.WorkloadRunning)
	again := s.attach(w.Key, false)
	defer again.Close()
	s.write(again, "two\n")
	s.waitForLine(w.Key, "two")
}

func attachTerminal(s *suite) {
	w := s.workload("size")
	w.Spec.Stdin, w.Spec.TTY = true, true
	s.run(w)
	s.waitForLine(w.Key, "x")
	in := s.attach(w.Key, true)
	if err := in.Resize(91, 17); err != nil {
		s.Errorf("resize: %v", err)
	}
	s.waitForLine(w.Key, "91x17")
	s.restart()
	_ = in.Close()
	wantExit := s.watch()
	in = s.attach(w.Key, true)
	defer in.Close()
	if err := in.Resize(120, 40); err != nil {
		s.Errorf("resize: %v", err)
	}
	s.waitForLine(w.Key, "120x40")
	s.write(in, "\x03") // Ctrl-C, which the terminal turns into SIGINT
	wantExit(w, 0, false)
}

func attachNeedsAnInput(s *suite) {
	w := s.runIgnoring()
	if _, err := s.rt.(runtime.Attacher).Attach(s.Context(), w.Key, false); !errors.Is(err, api.ErrConflict) {
		s.Errorf("attach to a workload without input: got %v, want ErrConflict", err)
	}
}

// inputIsRefused checks a runtime whose workloads have no input.
func inputIsRefused(s *suite) {
	if _, ok := s.rt.(runtime.Attacher); ok {
		return
	}
	w := s.workload("cat")
	w.Spec.Stdin = true
	s.wantReason(s.rt.Create(s.Context(), w), api.ReasonNoRuntime)
}
