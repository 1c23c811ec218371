// Package docs keeps typed documents of one kind in memory and saves changes to a store. It is for
// the packages of identity, whose documents change rarely and from many goroutines; cores use
// step.Journal.
//
//	users := docs.New[User]("user", st)
//	err := users.Load(loaded) // ignores other kinds
//	err = users.Update(ctx, "acme/alice", func(u User, ok bool) (User, error) { … })
package docs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"

	"github.com/treeline-edge/treeline/internal/store"
)

// ErrDelete, returned by the function given to Update, deletes the document.
var ErrDelete = errors.New("docs: delete")

// Table holds the documents of one kind. It is safe for concurrent use. Returned values are
// shallow copies: do not change what they point to.
type Table[T any] struct {
	kind string
	st   store.Store

	writing sync.Mutex           // held across a save, so that read, decide and save are atomic
	doubt   map[string]store.Doc // failed saves, of which it is unknown whether they were stored

	reading sync.RWMutex // guards rows; never held across I/O
	rows    map[string]row[T]
}

type row[T any] struct {
	val     T
	version uint64
}

// New makes an empty table of documents of the kind, stored in st.
func New[T any](kind string, st store.Store) *Table[T] {
	return &Table[T]{kind: kind, st: st, doubt: map[string]store.Doc{}, rows: map[string]row[T]{}}
}

// Load fills the table with the documents of its kind among docs. Call it once, before the
// table is used.
func (t *Table[T]) Load(docs []store.Doc) error {
	for _, d := range docs {
		if err := t.Adopt(d); err != nil {
			return err
		}
	}
	return nil
}

// Adopt adds or replaces a document that was loaded, or that another process has saved, or removes one without Data. It
// ignores documents of other kinds.
func (t *Table[T]) Adopt(d store.Doc) error {
	if d.Kind != t.kind {
		return nil
	}
	return t.apply(d)
}

func (t *Table[T]) Get(key string) (T, bool) {
	t.reading.RLock()
	defer t.reading.RUnlock()
	r, ok := t.rows[key]
	return r.val, ok
}

// All returns the documents, sorted by key.
func (t *Table[T]) All() []T {
	t.reading.RLock()
	defer t.reading.RUnlock()
	all := make([]T, 0, len(t.rows))
	for _, key := range slices.Sorted(maps.Keys(t.rows)) {
		all = append(all, t.rows[key].val)
	}
	return all
}

// Keys returns the keys of the documents, sorted.
func (t *Table[T]) Keys() []string {
	t.reading.RLock()
	defer t.reading.RUnlock()
	return slices.Sorted(maps.Keys(t.rows))
}

func (t *Table[T]) Len() int {
	t.reading.RLock()
	defer t.reading.RUnlock()
	return len(t.rows)
}

// Each yields the documents in any order. The loop must not change the table.
func (t *Table[T]) Each() iter.Seq[T] {
	return func(yield func(T) bool) {
		t.reading.RLock()
		defer t.reading.RUnlock()
		for _, r := range t.rows {
			if !yield(r.val) {
				return
			}
		}
	}
}

// Update changes one document: fn gets the current one and returns the new one, ErrDelete, or an
// error, which leaves it unchanged. Updates are serialized. The change is durable before it is
// visible. After an error of the store it is unknown whether the change happened; the next Update
// of the key first repeats the save.
func (t *Table[T]) Update(ctx context.Context, key string, fn func(old T, ok bool) (T, error)) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if d, ok := t.doubt[key]; ok {
		// Saving the same version with the same data again is idempotent.
		if err := t.save(ctx, d); err != nil {
			return err
		}
	}
	t.reading.RLock()
	old, ok := t.rows[key]
	t.reading.RUnlock()
	val, err := fn(old.val, ok)
	d := store.Doc{Kind: t.kind, Key: key, Version: old.version + 1}
	switch {
	case errors.Is(err, ErrDelete):
		if !ok {
			return nil
		}
	case err != nil:
		return err
	default:
		if d.Data, err = json.Marshal(val); err != nil {
			return fmt.Errorf("encode %s %q: %w", t.kind, key, err)
		}
	}
	return t.save(ctx, d)
}

func (t *Table[T]) Delete(ctx context.Context, key string) error {
	return t.Update(ctx, key, func(old T, _ bool) (T, error) { return old, ErrDelete })
}

// DeleteWhere removes the documents that match, one after the other, including one that is being
// saved when DeleteWhere is called.
func (t *Table[T]) DeleteWhere(ctx context.Context, match func(T) bool) error {
	t.writing.Lock() // waits until a save under way is visible
	t.reading.RLock()
	var keys []string
	for key, r := range t.rows {
		if match(r.val) {
			keys = append(keys, key)
		}
	}
	t.reading.RUnlock()
	t.writing.Unlock()
	slices.Sort(keys)
	for _, key := range keys {
		err := t.Update(ctx, key, func(old T, ok bool) (T, error) {
			if ok && !match(old) {
				return old, errKept
			}
			return old, ErrDelete
		})
		if err != nil && !errors.Is(err, errKept) {
			return err
		}
	}
	return nil
}

var errKept = errors.New("docs: changed meanwhile, kept")

func (t *Table[T]) save(ctx context.Context, d store.Doc) error {
	if err := t.st.Save(ctx, []store.Doc{d}); err != nil {
		t.doubt[d.Key] = d
		return fmt.Errorf("save %s %q: %w", t.kind, d.Key, err)
	}
	delete(t.doubt, d.Key)
	return t.apply(d)
}

func (t *Table[T]) apply(d store.Doc) error {
	r := row[T]{version: d.Version}
	if d.Data != nil {
		// The decoded value shares no pointers with the writer's.
		if err := json.Unmarshal(d.Data, &r.val); err != nil {
			return fmt.Errorf("decode %s %q: %w: %w", t.kind, d.Key, store.ErrCorrupt, err)
		}
	}
	t.reading.Lock()
	defer t.reading.Unlock()
	if d.Data == nil {
		delete(t.rows, d.Key)
	} else {
		t.rows[d.Key] = r
	}
	return nil
}
