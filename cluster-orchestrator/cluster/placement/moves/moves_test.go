package moves

import (
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

var now = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func task(m *Move) Task { return Task{Epoch: m.Epoch, Phase: m.Phase, From: m.From, To: m.To} }

func TestPhases(t *testing.T) {
	m := Begin("a", "b", 7, api.ReasonDrained)
	steps := []struct {
		name string
		do   func() bool
		want Phase
	}{
		{"a stop that the cluster did not order", func() bool { return m.Apply(Result{Task: task(m), Bytes: 100 << 20}, now) == Stop }, Stopping},
		{"the end", func() bool { return m.Ended(now.Add(time.Second)) }, Finishing},
		{"the end again", func() bool { return !m.Ended(now.Add(time.Minute)) }, Finishing},
		{"the last pass", func() bool { return m.Apply(Result{Task: task(m), Bytes: 5 << 10}, now) == Start }, Starting},
		{"the start", func() bool { return m.Runs(now.Add(2*time.Second)) && !m.Runs(now.Add(time.Hour)) }, Starting},
	}
	for _, s := range steps {
		if !s.do() || m.Phase != s.want {
			t.Fatalf("%s: the phase is %s, want %s", s.name, m.Phase, s.want)
		}
	}
	if m.Holds() || !Begin("a", "b", 1, "").Holds() || (*Move)(nil).Holds() {
		t.Error("the source holds the volumes until the last pass is complete, and only then")
	}
	if got, want := m.Summary(now.Add(2500*time.Millisecond)), "moved with its volumes: not available for 2500 ms; 100 MiB were copied while it ran, and 5 KiB after its stop"; got != want {
		t.Errorf("summary: got %q, want %q", got, want)
	}
}

// TestResultsOfOthersCountForNothing: late, repeated and invented results of another move or phase.
func TestResultsOfOthersCountForNothing(t *testing.T) {
	fresh := func() *Move { return Begin("a", "b", 7, api.ReasonDrained) }
	for name, change := range map[string]func(*Result){
		"another phase": func(r *Result) { r.Phase = Finishing }, "no phase": func(r *Result) { r.Phase = "" },
		"an earlier placement": func(r *Result) { r.Epoch = 6 }, "another target": func(r *Result) { r.To = "c" },
		"another source": func(r *Result) { r.From = "c" }, "the end of all": func(r *Result) { r.Phase = Starting },
	} {
		m := fresh()
		r := Result{Task: task(m)}
		change(&r)
		if got := m.Apply(r, now); got != Nothing || *m != *fresh() {
			t.Errorf("%s: got step %d and %+v, want nothing", name, got, m)
		}
	}
	if (*Move)(nil).Apply(Result{}, now) != Nothing {
		t.Error("a result without a move has a consequence")
	}
}

func TestFailures(t *testing.T) {
	m := Begin("a", "b", 7, api.ReasonDrained)
	for n, want := range []Step{Wait, Wait, Wait, Other} {
		if got := m.Apply(Result{Task: task(m), Fault: "disk full", Failures: n}, now); got != want {
			t.Errorf("after %d failures: got step %d, want %d", n, got, want)
		}
	}
	m.Ended(now)
	if got := m.Apply(Result{Task: task(m), Fault: "gone", Failures: maxLast}, now); got != GiveUp || m.Phase != Finishing {
		t.Errorf("the last pass: got step %d in phase %s, want to give up", got, m.Phase)
	}
}
