// Package client asks an external scheduler: a WebAssembly module or an HTTP service. Both
// read a sched.Ask and write a sched.Answer as JSON. A crash, a timeout or an unreadable
// answer becomes an answer with an Error. Package extsched validates the candidates in
// answers.
//
//	s, err := client.Open(ctx, "wasm:/etc/treeline/best.wasm")
//	answer := s.Rank(ctx, ask)
package client

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/remote"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/wasm"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Ranker answers one question before ctx ends. The question and the answer are JSON. It is
// safe for concurrent use.
type Ranker interface {
	Rank(ctx context.Context, ask []byte) ([]byte, error)
	Close(ctx context.Context) error
}

// Scheduler is an external scheduler. It is safe for concurrent use.
type Scheduler struct {
	name    string
	ranker  Ranker
	breaker breaker
	slots   chan struct{}
}

// MaxParallel bounds the questions that a scheduler handles at a time. Further ones wait.
const MaxParallel = 4

// IsExternal reports whether a setting names an external scheduler: "wasm:/path/to/module"
// or an http:// or https:// URL. Anything else is the name of a built-in plugin.
func IsExternal(setting string) bool {
	return strings.HasPrefix(setting, wasmPrefix) || strings.HasPrefix(setting, "http://") || strings.HasPrefix(setting, "https://")
}

const wasmPrefix = "wasm:"

// Open prepares the scheduler that a setting names. It returns ErrInvalid for a module that
// does not compile and for a malformed URL. It does not connect to the URL.
func Open(ctx context.Context, setting string) (*Scheduler, error) {
	if path, ok := strings.CutPrefix(setting, wasmPrefix); ok {
		m, err := wasm.Load(ctx, path)
		if err != nil {
			return nil, err
		}
		return newScheduler(setting, m), nil
	}
	c, err := remote.New(setting)
	if err != nil {
		return nil, err
	}
	return newScheduler(c.Name(), c), nil
}

func newScheduler(name string, r Ranker) *Scheduler {
	return &Scheduler{name: name, ranker: r, slots: make(chan struct{}, MaxParallel)}
}

// Name returns the setting that the scheduler was opened with. Passwords are removed.
func (s *Scheduler) Name() string { return s.name }

// Close frees the scheduler's resources. No Rank may be running.
func (s *Scheduler) Close(ctx context.Context) error { return s.ranker.Close(ctx) }

// Rank asks the scheduler. It takes at most ask.Deadline. The answer has the question's key,
// and an Error if the scheduler gave no readable answer.
func (s *Scheduler) Rank(ctx context.Context, ask sched.Ask) sched.Answer {
	ranked, err := s.rank(ctx, ask)
	if err != nil {
		return sched.Answer{Key: ask.Key, Error: err.Error()}
	}
	return sched.Answer{Key: ask.Key, Ranked: ranked}
}

func (s *Scheduler) rank(ctx context.Context, ask sched.Ask) ([]sched.Choice, error) {
	if wait := s.breaker.allow(time.Now()); wait > 0 {
		return nil, fmt.Errorf("failed %d times in a row, not asked for another %s: %w", maxFailures, wait.Round(time.Second), api.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, ask.Deadline)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		// The breaker does not count this: it counts the questions that occupy the slots.
		return nil, fmt.Errorf("busy with %d other questions: %w", MaxParallel, api.ErrUnavailable)
	}
	if ask.Candidates == nil {
		ask.Candidates = []sched.Candidate{} // encodes as [], not null
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("encode the question: %w", err)
	}
	ranked, err := s.exchange(ctx, ask.Key, body)
	s.breaker.note(time.Now(), err == nil)
	return ranked, err
}

func (s *Scheduler) exchange(ctx context.Context, key string, ask []byte) ([]sched.Choice, error) {
	body, err := s.ranker.Rank(ctx, ask)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("no answer in time: %w", api.ErrUnavailable)
	}
	if err != nil {
		return nil, err
	}
	var a sched.Answer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("decode the answer: %w: %w", err, api.ErrInvalid)
	}
	switch {
	case a.Error != "":
		return nil, fmt.Errorf("it reports %.200q: %w", a.Error, api.ErrUnavailable)
	case a.Key != key:
		return nil, fmt.Errorf("the answer has key %.60q, want %q: %w", a.Key, key, api.ErrInvalid)
	}
	return a.Ranked, nil
}
