package sched

import "time"

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
