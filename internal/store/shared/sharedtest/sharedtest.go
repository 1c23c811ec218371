// Package sharedtest has a log in memory for tests of replicas, also one of an engine that is not
// atomic, and a network with faults between it and replicas.
package sharedtest

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/store/shared"
)

// Engine keeps a log in memory. Replicas open it with Open.
type Engine struct {
	// Racy makes an engine that looks for an entry and writes in two steps, with this pause between
	// them. 0: an atomic engine.
	Racy time.Duration

	mu      sync.Mutex // guards all below
	entries map[uint64]shared.Entry
	history []shared.Entry
	deleted int // at most at once
}

func NewEngine() *Engine { return &Engine{entries: map[uint64]shared.Entry{}} }

// Open returns a log of the engine that can be closed.
func (e *Engine) Open() shared.Log { return &log{engine: e} }

// Entries returns a copy of what is stored, in order.
func (e *Engine) Entries() (all []shared.Entry) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range slices.Sorted(maps.Keys(e.entries)) {
		all = append(all, clone(e.entries[p]))
	}
	return all
}

// History returns all entries that were ever stored, without their documents, in the order in which
// they were.
func (e *Engine) History() []shared.Entry {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.history)
}

// Remove deletes an entry, as a damaged engine may do.
func (e *Engine) Remove(position uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.entries, position)
}

func (e *Engine) append(entry shared.Entry) (taken bool) {
	e.mu.Lock()
	_, taken = e.entries[entry.Position]
	if e.Racy > 0 && !taken {
		e.mu.Unlock()
		time.Sleep(e.Racy)
		e.mu.Lock()
	}
	defer e.mu.Unlock()
	if !taken {
		e.entries[entry.Position] = clone(entry)
		e.history = append(e.history, shared.Entry{Position: entry.Position, Epoch: entry.Epoch, Takeover: entry.Takeover, Start: entry.Start})
	}
	return taken
}

func (e *Engine) at(position uint64) (shared.Entry, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	entry, ok := e.entries[position]
	return clone(entry), ok
}

// MostDeleted returns the largest number of entries that were deleted at once.
func (e *Engine) MostDeleted() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.deleted
}

func (e *Engine) remove(positions []uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.deleted = max(e.deleted, len(positions))
	for _, p := range positions {
		delete(e.entries, p)
	}
}

// clone copies an entry, so that engine and replicas share no bytes.
func clone(e shared.Entry) shared.Entry {
	e.Docs = slices.Clone(e.Docs)
	for i := range e.Docs {
		e.Docs[i].Data = slices.Clone(e.Docs[i].Data)
	}
	return e
}

type log struct {
	engine *Engine
	mu     sync.Mutex // guards closed
	closed bool
}

func (l *log) use(ctx context.Context) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return store.ErrClosed
	}
	return ctx.Err()
}

func (l *log) Append(ctx context.Context, e shared.Entry) (bool, error) {
	if err := l.use(ctx); err != nil {
		return false, err
	}
	return l.engine.append(e), nil
}

func (l *log) At(ctx context.Context, position uint64) (shared.Entry, bool, error) {
	if err := l.use(ctx); err != nil {
		return shared.Entry{}, false, err
	}
	e, ok := l.engine.at(position)
	return e, ok, nil
}

func (l *log) Next(ctx context.Context, from uint64, n int) (all []shared.Entry, err error) {
	for p := from; len(all) < n; p++ {
		e, ok, err := l.At(ctx, p)
		if err != nil || !ok {
			return all, err
		}
		all = append(all, e)
	}
	return all, nil
}

func (l *log) Entries(ctx context.Context, fn func(shared.Entry) error) error {
	if err := l.use(ctx); err != nil {
		return err
	}
	for _, e := range l.engine.Entries() {
		if err := fn(e); err != nil {
			return err
		}
	}
	return ctx.Err()
}

func (l *log) Delete(ctx context.Context, positions ...uint64) error {
	if err := l.use(ctx); err != nil {
		return err
	}
	l.engine.remove(positions)
	return nil
}

func (l *log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}
