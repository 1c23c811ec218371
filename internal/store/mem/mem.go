// Package mem is a store in memory, for the simulator and for tests. To simulate a crash, pass
// Docs to the next New.
//
//	s := mem.New()
//	restarted := mem.New(s.Docs()...)
package mem

import (
	"cmp"
	"context"
	"slices"
	"sync"

	"github.com/treeline-edge/treeline/internal/store"
)

// Store implements store.Store in memory.
type Store struct {
	mu     sync.Mutex // guards all below
	docs   map[id]store.Doc
	closed bool
}

type id struct{ kind, key string }

func New(docs ...store.Doc) *Store {
	s := &Store{docs: make(map[id]store.Doc, len(docs))}
	for _, d := range docs {
		s.docs[id{d.Kind, d.Key}] = clone(d)
	}
	return s
}

func (s *Store) Save(ctx context.Context, docs []store.Doc) error {
	if err := store.Validate(docs); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return store.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	for i, d := range docs {
		at := id{d.Kind, d.Key}
		switch store.Decide(s.docs[at], docs[i:]) {
		case store.Refuse:
			return store.Conflict(d, s.docs[at].Version)
		case store.Repeat:
		case store.Write:
			if d.Data == nil {
				delete(s.docs, at)
			} else {
				s.docs[at] = clone(d)
			}
		}
	}
	return nil
}

// Load implements store.Store, in the order of Docs.
func (s *Store) Load(ctx context.Context, fn func(store.Doc) error) error {
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return store.ErrClosed
	}
	for _, d := range s.Docs() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := fn(d); err != nil {
			return err
		}
	}
	return nil
}

// Docs returns a copy of all documents, ordered by kind and key. It works after Close too.
func (s *Store) Docs() []store.Doc {
	s.mu.Lock()
	defer s.mu.Unlock()
	docs := make([]store.Doc, 0, len(s.docs))
	for _, d := range s.docs {
		docs = append(docs, clone(d))
	}
	slices.SortFunc(docs, func(a, b store.Doc) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Key, b.Key))
	})
	return docs
}

func (s *Store) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}

func clone(d store.Doc) store.Doc {
	d.Data = slices.Clone(d.Data)
	return d
}
