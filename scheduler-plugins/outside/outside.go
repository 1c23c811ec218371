// Package outside asks schedulers that are not ours: WebAssembly modules and HTTP
// services, which all get the same JSON (sched.Ask) and give the same answer
// (sched.Answer). Whatever such a scheduler does, crash, hang or talk nonsense,
// comes back as an answer with an Error; the core checks what an answer names, and
// places with a built-in plugin when there is none.
//
//	s, err := outside.Open(ctx, "wasm:/etc/treeline/best.wasm")
//	answer := s.Rank(ctx, ask)
package outside

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/outside/remote"
	"github.com/treeline-edge/treeline/scheduler-plugins/outside/wasm"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Ranker answers one question, JSON for JSON, before ctx ends. It may be called by
// several goroutines.
type Ranker interface {
	Rank(ctx context.Context, ask []byte) ([]byte, error)
	Close(ctx context.Context) error
}

// Scheduler is a scheduler outside of the cores. It may be used by several goroutines.
type Scheduler struct {
	name    string
	ranker  Ranker
	breaker breaker
	slots   chan struct{}
}

// AtOnce is how many questions one scheduler is asked at a time; more wait.
const AtOnce = 4

// Is reports whether a setting names a scheduler outside: "wasm:/path/to/module" or
// an http:// or https:// URL. Anything else is a built-in's name.
func Is(setting string) bool {
	return strings.HasPrefix(setting, wasmPrefix) || strings.HasPrefix(setting, "http://") || strings.HasPrefix(setting, "https://")
}

const wasmPrefix = "wasm:"

// Open makes the scheduler that a setting names ready. A module that cannot be
// compiled and a malformed URL are ErrInvalid; that nobody answers at the URL is
// found out when it is asked.
func Open(ctx context.Context, setting string) (*Scheduler, error) {
	if path, ok := strings.CutPrefix(setting, wasmPrefix); ok {
		m, err := wasm.Load(ctx, path)
		if err != nil {
			return nil, err
		}
		return New(setting, m), nil
	}
	c, err := remote.New(setting)
	if err != nil {
		return nil, err
	}
	return New(c.Name(), c), nil
}

// New is a scheduler of that name over a ranker.
func New(name string, r Ranker) *Scheduler {
	return &Scheduler{name: name, ranker: r, slots: make(chan struct{}, AtOnce)}
}

// Name is the setting that it was opened by, without a password.
func (s *Scheduler) Name() string { return s.name }

// Close frees what it holds. Nobody may be asking.
func (s *Scheduler) Close(ctx context.Context) error { return s.ranker.Close(ctx) }

// Rank asks, and takes at most the ask's Deadline. The answer has the ask's Key,
// and an Error if it gave none that can be read; who asked knows whom.
func (s *Scheduler) Rank(ctx context.Context, ask sched.Ask) sched.Answer {
	ranked, err := s.rank(ctx, ask)
	if err != nil {
		return sched.Answer{Key: ask.Key, Error: err.Error()}
	}
	return sched.Answer{Key: ask.Key, Ranked: ranked}
}

func (s *Scheduler) rank(ctx context.Context, ask sched.Ask) ([]sched.Choice, error) {
	if wait := s.breaker.shut(time.Now()); wait > 0 {
		return nil, fmt.Errorf("it failed %d times in a row and is not asked for another %s: %w", tolerated, wait.Round(time.Second), api.ErrUnavailable)
	}
	ctx, cancel := context.WithTimeout(ctx, ask.Deadline)
	defer cancel()
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
	case <-ctx.Done():
		// Its other questions take the time: each of those is counted by itself.
		return nil, fmt.Errorf("it is busy with %d others: %w", AtOnce, api.ErrUnavailable)
	}
	if ask.Candidates == nil {
		ask.Candidates = []sched.Candidate{} // an empty list, not null, in whatever language
	}
	body, err := json.Marshal(ask)
	if err != nil {
		return nil, fmt.Errorf("encode the question: %w", err)
	}
	ranked, err := s.answer(ctx, ask.Key, body)
	s.breaker.note(time.Now(), err == nil)
	return ranked, err
}

func (s *Scheduler) answer(ctx context.Context, key string, ask []byte) ([]sched.Choice, error) {
	body, err := s.ranker.Rank(ctx, ask)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("no answer in time: %w", api.ErrUnavailable)
	}
	if err != nil {
		return nil, err
	}
	var a sched.Answer
	if err := json.Unmarshal(body, &a); err != nil {
		return nil, fmt.Errorf("its answer is no answer: %w: %w", err, api.ErrInvalid)
	}
	switch {
	case a.Error != "":
		return nil, fmt.Errorf("it says %.200q: %w", a.Error, api.ErrUnavailable)
	case a.Key != key:
		return nil, fmt.Errorf("it answers question %.60q, asked was %q: %w", a.Key, key, api.ErrInvalid)
	}
	return a.Ranked, nil
}
