package sched

import (
	"fmt"
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Ask is a question to a scheduler outside the core: rank these. All candidates
// passed the filters when it was asked; the answer is checked again when it comes.
// A core emits it to api.ToScheduler and goes on; the answer is an input.
type Ask struct {
	Key        string        `json:"key"` // of the question, repeated in the answer
	Level      Level         `json:"level"`
	Request    Request       `json:"request"`
	Candidates []Candidate   `json:"candidates"`
	Seed       uint64        `json:"seed,string"`
	Deadline   time.Duration `json:"deadline"` // after which nobody listens
}

// Answer is a scheduler's answer to an Ask: candidates, best first, or why there
// is none. One that names what was not asked about is as good as none.
type Answer struct {
	Key    string   `json:"key"`
	Ranked []Choice `json:"ranked,omitempty"`
	// Error is for whoever runs the scheduler: it crashed, was too slow, or lied.
	Error string `json:"error,omitempty"`
}

// Check says what is wrong with an answer: it is an error, or to another question,
// names what was not asked about or one twice, or a score is no number. It may
// leave candidates out, and what it puts first is first, whatever the scores say.
// It is ErrUnavailable or ErrInvalid.
func Check(ask *Ask, ans *Answer) error {
	if ans.Error != "" {
		return fmt.Errorf("%s: %w", ans.Error, api.ErrUnavailable)
	}
	if ans.Key != ask.Key {
		return fmt.Errorf("asked was %q, not %.60q: %w", ask.Key, ans.Key, api.ErrInvalid)
	}
	if len(ans.Ranked) > len(ask.Candidates) {
		return fmt.Errorf("%d choices of %d candidates: %w", len(ans.Ranked), len(ask.Candidates), api.ErrInvalid)
	}
	named := make(map[string]bool, len(ask.Candidates)) // false: not by the answer
	for i := range ask.Candidates {
		named[ask.Candidates[i].ID] = false
	}
	for _, choice := range ans.Ranked {
		before, asked := named[choice.ID]
		switch {
		case !asked:
			return fmt.Errorf("%.60q is no candidate: %w", choice.ID, api.ErrInvalid)
		case before:
			return fmt.Errorf("%q stands twice in it: %w", choice.ID, api.ErrInvalid)
		case math.IsNaN(choice.Score) || math.IsInf(choice.Score, 0):
			return fmt.Errorf("the score of %q is no number: %w", choice.ID, api.ErrInvalid)
		}
		named[choice.ID] = true
	}
	return nil
}

// Complete ranks all that fits of what was asked: first as a checked answer has
// it, then what that left out as p does. Candidates that fit no longer are gone.
func Complete(ask *Ask, ans *Answer, p Plugin) Result {
	res := Place(&ask.Request, ask.Candidates, p, ask.Seed)
	at := make(map[string]int, len(ans.Ranked))
	for i, choice := range ans.Ranked {
		at[choice.ID] = i
	}
	fits := make([]bool, len(ans.Ranked))
	var rest []Choice
	for _, choice := range res.Ranked {
		if i, ok := at[choice.ID]; ok {
			fits[i] = true
		} else {
			rest = append(rest, choice)
		}
	}
	ranked := make([]Choice, 0, len(res.Ranked))
	for i, choice := range ans.Ranked {
		if fits[i] {
			ranked = append(ranked, choice)
		}
	}
	res.Ranked = append(ranked, rest...)
	return res
}
