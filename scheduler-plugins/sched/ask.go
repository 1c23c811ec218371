package sched

import (
	"fmt"
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Ask asks an external scheduler to rank candidates. All of them pass the filters at that
// time; they are filtered again when the answer arrives. A core emits the Ask to
// wire.ToScheduler and does not wait; the answer is an input.
type Ask struct {
	Key        string        `json:"key"` // of the question, repeated in the answer
	Level      Level         `json:"level"`
	Request    Request       `json:"request"`
	Candidates []Candidate   `json:"candidates"`
	Seed       uint64        `json:"seed,string"`
	Deadline   time.Duration `json:"deadline"` // later answers are ignored
}

// Answer is the answer to an Ask: candidates, best first, or an Error.
type Answer struct {
	Key    string   `json:"key"`
	Ranked []Choice `json:"ranked,omitempty"`
	// Error tells the operator why there is no ranking: the scheduler crashed, was too slow,
	// or gave an invalid answer.
	Error string `json:"error,omitempty"`
}

// Check validates an answer. It returns ErrUnavailable if Error is set, and ErrInvalid if the
// key is wrong, if a choice is not a candidate or occurs twice, or if a score is not finite.
// An answer may omit candidates. Its order counts, not its scores.
func Check(ask *Ask, ans *Answer) error {
	if ans.Error != "" {
		return fmt.Errorf("%s: %w", ans.Error, api.ErrUnavailable)
	}
	if ans.Key != ask.Key {
		return fmt.Errorf("the answer has key %.60q, want %q: %w", ans.Key, ask.Key, api.ErrInvalid)
	}
	if len(ans.Ranked) > len(ask.Candidates) {
		return fmt.Errorf("the answer names %d choices, there are %d candidates: %w", len(ans.Ranked), len(ask.Candidates), api.ErrInvalid)
	}
	named := make(map[string]bool, len(ask.Candidates)) // true: already seen in the answer
	for i := range ask.Candidates {
		named[ask.Candidates[i].ID] = false
	}
	for _, choice := range ans.Ranked {
		before, asked := named[choice.ID]
		switch {
		case !asked:
			return fmt.Errorf("the answer names %.60q, which is no candidate: %w", choice.ID, api.ErrInvalid)
		case before:
			return fmt.Errorf("the answer names %q twice: %w", choice.ID, api.ErrInvalid)
		case math.IsNaN(choice.Score) || math.IsInf(choice.Score, 0):
			return fmt.Errorf("the score of %q is not a finite number: %w", choice.ID, api.ErrInvalid)
		}
		named[choice.ID] = true
	}
	return nil
}
