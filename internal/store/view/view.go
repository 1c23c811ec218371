// Package view reads all documents of a store as of one moment while saves continue, whatever the store
// is.
//
//	st = view.New(st)
//	err := st.All(ctx, func(d store.Doc, again bool) error { … })
package view

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store"
)

// MaxKept bounds the documents that are saved while All reads and kept until its end, in bytes.
const MaxKept = 64 << 20

// overhead of a kept document, in bytes.
const overhead = 128

// Store is a store.Store with a view of one moment.
type Store struct {
	store.Store

	// saving is held shared by saves, and alone at the beginning and the end of a view, so that a save is in
	// a view as a whole or not at all.
	saving  sync.RWMutex
	reading sync.Mutex // held by All

	mu   sync.Mutex // guards kept; saves are not ordered otherwise
	kept *kept      // nil: no view is being read
}

type id struct{ kind, key string }

// kept are the documents that were saved since a view began, in the order of their first save.
type kept struct {
	order []id
	last  map[id]store.Doc // Data nil: deleted
	bytes int
	err   error // why the view cannot be completed
}

// New returns the store with a view. All saves must go through it.
func New(s store.Store) *Store { return &Store{Store: s} }

// Save implements store.Store.
func (s *Store) Save(ctx context.Context, docs []store.Doc) error {
	s.saving.RLock()
	defer s.saving.RUnlock()
	s.begin(docs)
	err := s.Store.Save(ctx, docs)
	s.end(docs, err)
	return err
}

// begin records which documents are about to change, so that All does not take them from the store.
func (s *Store) begin(docs []store.Doc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kept == nil || s.kept.err != nil {
		return
	}
	for _, d := range docs {
		k := id{d.Kind, d.Key}
		if _, ok := s.kept.last[k]; !ok {
			s.kept.last[k] = store.Doc{Kind: d.Kind, Key: d.Key}
			s.kept.order = append(s.kept.order, k)
			s.kept.bytes += overhead + len(d.Kind) + len(d.Key)
		}
	}
}

func (s *Store) end(docs []store.Doc, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := s.kept
	switch {
	case k == nil || k.err != nil:
		return
	case err != nil:
		k.drop(fmt.Errorf("a save failed meanwhile, and what of it is stored is unknown: repeat it: %w: %w", api.ErrUnavailable, err))
		return
	}
	for _, d := range docs {
		at := id{d.Kind, d.Key}
		k.bytes += len(d.Data) - len(k.last[at].Data)
		k.last[at] = d
	}
	if k.bytes > MaxKept {
		k.drop(fmt.Errorf("more than %d MiB were saved meanwhile: repeat it when less changes: %w", MaxKept>>20, api.ErrUnavailable))
	}
}

func (k *kept) drop(err error) {
	*k = kept{err: err}
}

func (s *Store) set(k *kept) *kept {
	s.saving.Lock() // waits for saves in progress
	defer s.saving.Unlock()
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.kept
	s.kept = k
	return old
}

func (s *Store) changing(d store.Doc) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.kept.last[id{d.Kind, d.Key}]
	return ok, s.kept.err
}

// All calls fn with all documents as they are at the moment when the last one was read from the store. Documents
// that changed meanwhile come last, with again: fn may have been called with an older one before, which is
// replaced, or deleted if Data is nil. Saves continue, unless the store reads and writes
// in turns. All fails with ErrUnavailable if a save fails meanwhile, or if more than MaxKept is saved. One
// call runs at a time.
func (s *Store) All(ctx context.Context, fn func(d store.Doc, again bool) error) error {
	s.reading.Lock()
	defer s.reading.Unlock()
	s.set(&kept{last: map[id]store.Doc{}})
	err := s.Load(ctx, func(d store.Doc) error {
		changing, err := s.changing(d)
		if err != nil || changing {
			return err
		}
		return fn(d, false)
	})
	k := s.set(nil)
	if err := errors.Join(err, k.err); err != nil {
		return fmt.Errorf("read the store as of one moment: %w", err)
	}
	for _, at := range k.order {
		if err := fn(k.last[at], true); err != nil {
			return err
		}
	}
	return nil
}
