package extsched_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

func question(id api.InstanceID, candidates ...string) extsched.Question {
	a := sched.Ask{Key: "k-" + string(id)}
	for _, c := range candidates {
		a.Candidates = append(a.Candidates, sched.Candidate{ID: c})
	}
	return extsched.Question{Instance: id, Reason: api.ReasonViolated, Ask: a}
}

func TestOnlyAValidAnswerIsUsed(t *testing.T) {
	ranked := func(ids ...string) (out []sched.Choice) {
		for _, id := range ids {
			out = append(out, sched.Choice{ID: id})
		}
		return out
	}
	for name, tt := range map[string]struct {
		answer sched.Answer
		fault  string
	}{
		"ranked":              {sched.Answer{Ranked: ranked("b", "a")}, ""},
		"some":                {sched.Answer{Ranked: ranked("b")}, ""},
		"none":                {sched.Answer{}, "it names no candidate"},
		"error":               {sched.Answer{Error: "exit status 2", Ranked: ranked("b")}, "exit status 2"},
		"long error":          {sched.Answer{Error: strings.Repeat("x", 1<<20)}, "xxx"},
		"not a candidate":     {sched.Answer{Ranked: ranked("b", "elsewhere")}, `"elsewhere", which is no candidate`},
		"a candidate twice":   {sched.Answer{Ranked: ranked("b", "b")}, "twice"},
		"a score that is NaN": {sched.Answer{Ranked: []sched.Choice{{ID: "a", Score: math.NaN()}}}, "score"},
	} {
		t.Run(name, func(t *testing.T) {
			x := extsched.New()
			tt.answer.Key = x.Ask(question("i", "a", "b")).Key
			r, ok := x.Answer(tt.answer)
			if !ok || r.Instance != "i" || r.Reason != api.ReasonViolated {
				t.Fatalf("got %+v, %v, want the result of question i", r, ok)
			}
			if (r.Fault == "") != (tt.fault == "") || !strings.Contains(r.Fault, tt.fault) || len(r.Fault) > 1100 {
				t.Errorf("fault is %q, want %q", r.Fault, tt.fault)
			}
			if (len(r.Ranked) == 0) != (tt.fault != "") {
				t.Errorf("ranked are %v with fault %q", r.Ranked, r.Fault)
			}
			if _, ok := x.Answer(tt.answer); ok || x.Pending("i") {
				t.Error("a second answer is used")
			}
		})
	}
}

func TestQuestionExpires(t *testing.T) {
	x := extsched.New()
	q := question("i", "a")
	q.Ask.Request.Convergence = 7 * time.Second
	if a := x.Ask(q); a.Deadline != 7*time.Second {
		t.Errorf("deadline is %s, want the request's convergence time", a.Deadline)
	}
	if a := x.Ask(question("j", "a")); a.Deadline != extsched.DefaultDeadline {
		t.Errorf("deadline is %s, want the default", a.Deadline)
	}
	if r, ok := x.Expire("i"); !ok || r.Instance != "i" || r.Fault != "no answer within 7s" {
		t.Errorf("expired %+v, %v, want question i with a fault", r, ok)
	}
	if r, ok := x.Expire("i"); ok {
		t.Errorf("expired twice: %+v", r)
	}
	if open, _ := x.Size(); open != 1 {
		t.Errorf("%d questions are open, want j alone", open)
	}
}

func TestQuestionIsACopyWithBounds(t *testing.T) {
	q := question("i")
	for i := range 3 * extsched.MaxCandidates {
		q.Ask.Candidates = append(q.Ask.Candidates, sched.Candidate{ID: fmt.Sprintf("n%04d", 999-i)})
	}
	q.Ask.Request.Bounds = []sched.Bound{{Points: make([]api.Position, 1000)}}
	a := extsched.New().Ask(q)
	if len(a.Candidates) != extsched.MaxCandidates || a.Candidates[0].ID != "n0872" || a.Candidates[127].ID != "n0999" {
		t.Errorf("asked about %d candidates, %s to %s", len(a.Candidates), a.Candidates[0].ID, a.Candidates[len(a.Candidates)-1].ID)
	}
	if n := len(a.Request.Bounds[0].Points); n != 64 {
		t.Errorf("a bound has %d points, want 64", n)
	}
	if len(q.Ask.Request.Bounds[0].Points) != 1000 || q.Ask.Candidates[0].ID != "n0999" {
		t.Error("the caller's request changed")
	}
}

func TestWaitingInstancesTakeTurnsByUrgency(t *testing.T) {
	x := extsched.New()
	for i := range extsched.MaxOpen {
		x.Ask(question(api.InstanceID(fmt.Sprint(i)), "a"))
	}
	for _, w := range []struct {
		id      api.InstanceID
		urgency int
	}{{"low", 0}, {"first", 1}, {"gone", 3}, {"second", 1}, {"urgent", 3}, {"raised", 0}, {"first", 1}, {"raised", 2}} {
		x.Wait(w.id, w.urgency, api.ReasonNone)
	}
	x.Cancel("gone")
	want := []api.InstanceID{"urgent", "raised", "first", "second", "low"}
	if id, _, ok := x.Next(); ok {
		t.Fatalf("%s has its turn while %d questions are open", id, extsched.MaxOpen)
	}
	for i := range extsched.MaxOpen {
		x.Cancel(api.InstanceID(fmt.Sprint(i)))
	}
	var got []api.InstanceID
	for {
		id, _, ok := x.Next()
		if !ok {
			break
		}
		got = append(got, id)
	}
	if !slices.Equal(got, want) {
		t.Errorf("turns are %v, want %v", got, want)
	}
}

func TestQueueListsInstancesInTurn(t *testing.T) {
	var q extsched.Queue
	for i := range 100 {
		q.Add(api.InstanceID(fmt.Sprint(i%5)), i%3)
	}
	for i := range 5 {
		q.Add(api.InstanceID(fmt.Sprint(i)), i%2)
	}
	q.Remove("3")
	if got, want := q.List(), []api.InstanceID{"1", "4", "0", "2"}; q.Len() != 4 || q.Has("3") || !slices.Equal(got, want) {
		t.Errorf("the queue has %v, want %v", got, want)
	}
}

func TestANewQuestionReplacesTheOld(t *testing.T) {
	x := extsched.New()
	old := x.Ask(question("i", "a"))
	q := question("i", "a")
	q.Ask.Key = "new"
	x.Ask(q)
	if _, ok := x.Answer(sched.Answer{Key: old.Key, Ranked: []sched.Choice{{ID: "a"}}}); ok {
		t.Error("the answer to the replaced question is used")
	}
	if open, waiting := x.Size(); open != 1 || waiting != 0 || !x.Open("i") {
		t.Errorf("%d open, %d waiting, want the new question alone", open, waiting)
	}
}
