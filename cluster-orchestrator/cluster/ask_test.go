package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// asked returns the questions to the external scheduler in the last step.
func (w *world) asked() (out []sched.Ask) {
	for _, e := range w.last.Send {
		if q, ok := e.Msg.(sched.Ask); ok && e.To == wire.ToScheduler {
			out = append(out, q)
		}
	}
	return out
}

func TestExternalSchedulersChoiceIsVerified(t *testing.T) {
	answer := func(q sched.Ask, ids ...string) Ranked {
		a := sched.Answer{Key: q.Key}
		for _, id := range ids {
			a.Ranked = append(a.Ranked, sched.Choice{ID: id})
		}
		return Ranked{a}
	}
	for name, c := range map[string]struct {
		then  func(w *world, q sched.Ask)
		node  api.NodeID // "": any
		fault string
	}{
		"it chooses": {func(w *world, q sched.Ask) { w.step(answer(q, "n2", "n0")) }, "n2", ""},
		"its first choice is taken meanwhile": {func(w *world, q sched.Ask) {
			w.step(Cordon{"n2", true})
			w.step(answer(q, "n2", "n0"))
		}, "n0", ""},
		"it names who it was not asked about": {func(w *world, q sched.Ask) { w.step(answer(q, "n1", "elsewhere")) }, "", "elsewhere"},
		"it names nobody":                     {func(w *world, q sched.Ask) { w.step(answer(q)) }, "", "no candidate"},
		"it crashed":                          {func(w *world, q sched.Ask) { w.step(Ranked{sched.Answer{Key: q.Key, Error: "unreachable"}}) }, "", "unreachable"},
		"it hangs":                            {func(w *world, q sched.Ask) { awaitDeadline(w) }, "", "no answer within 5s"},
		"it answers another question": {func(w *world, q sched.Ask) {
			q.Key += "0"
			w.step(answer(q, "n2"))
			awaitDeadline(w)
		}, "", "no answer"},
	} {
		t.Run(name, func(t *testing.T) {
			w := line(t, 3, func(c *Config) { c.Asks = "http://brain" })
			w.wants(assignment(0, 1, spec(1, 100)))
			qs := w.asked()
			if len(qs) != 1 || len(qs[0].Candidates) != 3 || qs[0].Deadline != 5*time.Second || w.at(0).Node != "" {
				t.Fatalf("asked %+v, it is on %q", qs, w.at(0).Node)
			}
			w.checkBooks()
			noticed := ""
			c.then(w, qs[0])
			in := w.at(0)
			for _, e := range w.last.Send {
				if n, ok := e.Msg.(wire.Notice); ok {
					noticed = n.Text
				}
			}
			if c.node != "" && in.Node != c.node || in.Node == "" {
				t.Errorf("it is on %q, want %q", in.Node, c.node)
			}
			if c.fault != "" && (!strings.Contains(in.Detail, c.fault) || !strings.Contains(in.Detail, "http://brain") || noticed == "") {
				t.Errorf("detail %q and notice %q, want http://brain and %q in the detail", in.Detail, noticed, c.fault)
			}
			epoch := in.Epoch
			w.step(answer(qs[0], "n1")) // late, or a duplicate
			if w.at(0).Epoch != epoch {
				t.Error("a late answer moved it")
			}
			w.checkBooks()
		})
	}
}

// awaitDeadline advances the time until the instance is placed without an answer.
func awaitDeadline(w *world) {
	w.t.Helper()
	for asked := w.now; w.at(0).Node == ""; w.step(Tick{}) {
		if w.now = w.last.Wake; w.now.Sub(asked) > 6*time.Second {
			w.t.Fatalf("not placed %s after the question: %+v", w.now.Sub(asked), w.at(0))
		}
	}
}

func TestAnswerForARemovedInstanceIsIgnored(t *testing.T) {
	w := line(t, 3, func(c *Config) { c.Asks = "http://brain" })
	w.wants(assignment(0, 1, spec(1, 100)))
	q := w.asked()[0]
	w.drops(web.Instance(0))
	w.step(Ranked{sched.Answer{Key: q.Key, Ranked: []sched.Choice{{ID: "n0"}}}})
	w.beat()
	w.wants(assignment(1, 1, spec(1, 100)))
	w.restart() // the question is lost and asked again
	for _, id := range []api.NodeID{"n0", "n1", "n2"} {
		w.speak(id)
	}
	w.pass(20 * time.Second)
	if in := w.at(1); in.Node == "" {
		t.Errorf("after a restart it is nowhere: %+v", in)
	}
	w.checkBooks()
	if openQuestions(w) != 0 {
		t.Errorf("%d questions are open", openQuestions(w))
	}
}

// TestFewQuestionsAreOpenAndShort: the number of questions of a burst, and of their candidates,
// is bounded.
func TestFewQuestionsAreOpenAndShort(t *testing.T) {
	const instances = 200
	w := line(t, extsched.MaxCandidates+20, func(c *Config) { c.Asks = "http://brain" })
	var as []wire.Assignment
	for i := range instances {
		a := assignment(i, 1, spec(0.1, 1))
		if i == instances-1 {
			a.Spec.Priority = "urgent"
		}
		as = append(as, a)
	}
	as[150].Spec.Priority = "low"
	w.wants(as...)
	open := w.asked()
	if len(open) != extsched.MaxOpen || waitingQuestions(w) != instances-extsched.MaxOpen {
		t.Fatalf("%d questions are open, %d wait", len(open), waitingQuestions(w))
	}
	if open[0].Request.ID != string(web.Instance(instances-1)) {
		t.Errorf("the urgent one is not the first: %s", open[0].Request.ID)
	}
	w.drops(web.Instance(99)) // while it waits
	last, total := "", 0
	for len(open) > 0 {
		q := open[0]
		open = open[1:]
		if len(q.Candidates) != extsched.MaxCandidates {
			t.Fatalf("it is asked about %d", len(q.Candidates))
		}
		last, total = q.Request.ID, total+1
		w.step(Ranked{sched.Answer{Key: q.Key, Ranked: []sched.Choice{{ID: q.Candidates[0].ID}}}})
		if open = append(open, w.asked()...); openQuestions(w) > extsched.MaxOpen {
			t.Fatalf("%d questions are open", openQuestions(w))
		}
	}
	w.checkBooks()
	if total != instances-1 || last != string(web.Instance(150)) {
		t.Errorf("%d were asked about, at last %s", total, last)
	}
	for i := range instances {
		if i != 99 && w.at(i).Node == "" {
			t.Errorf("%d is nowhere: %s", i, w.at(i).Detail)
		}
	}
}

// TestQueuedInstanceMovesWhenItsNodeIsDrained: the instance already has a node.
func TestQueuedInstanceMovesWhenItsNodeIsDrained(t *testing.T) {
	w := line(t, 2, func(c *Config) { c.Asks = "http://brain" })
	answerAll := func() {
		for qs := w.asked(); len(qs) > 0; qs = append(qs[1:], w.asked()...) {
			w.step(Ranked{sched.Answer{Key: qs[0].Key, Ranked: []sched.Choice{{ID: qs[0].Candidates[0].ID}}}})
		}
	}
	w.step(Cordon{"n1", true})
	var as []wire.Assignment
	for i := range extsched.MaxOpen + 30 {
		as = append(as, assignment(i, 1, spec(0.01, 1)))
	}
	w.wants(as...)
	answerAll()
	w.beat()
	w.step(Cordon{"n1", false})
	w.step(Drain{Node: "n0"})
	if waitingQuestions(w) != 30 {
		t.Fatalf("%d wait for their turn", waitingQuestions(w))
	}
	w.checkBooks()
	answerAll()
	for i := range as {
		if w.at(i).Node != "n1" {
			t.Errorf("%d is on %q", i, w.at(i).Node)
		}
	}
	w.checkBooks()
}

func openQuestions(w *world) int { open, _ := w.c.place.Inspect().Questions.Size(); return open }

func waitingQuestions(w *world) int {
	_, waiting := w.c.place.Inspect().Questions.Size()
	return waiting
}
