package shared

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/treeline-edge/treeline/internal/store"
)

// Bounds of entries and of what is kept of obsolete documents, in bytes.
const (
	maxEntry  = 8 << 20 // of documents in an entry, unless one document is larger
	carrySize = 1 << 20 // of documents that are carried forward at once, or of one entry
	slack     = 4 << 20 // obsolete documents beyond the size of the current ones
	overhead  = 64      // of a document or entry
)

// What one Save does to shorten the log, in entries, so that it is not delayed noticeably: an engine may need
// milliseconds for each deletion.
const (
	carryReads = 16 // entries that are read to carry documents forward
	forgets    = 8  // entries that become obsolete
	deletions  = 16 // entries that are deleted: more than become obsolete, to catch up
)

// Store is the store of the active replica. It implements store.Store: when another replica has
// taken over, Save and Load fail with store.ErrConflict.
type Store struct {
	log   Log
	epoch uint64
	slack int

	unguarded bool // in tests: writes when the lease has ended, to be refused by the log

	turn   chan struct{} // of capacity one: whoever has sent to it owns the fields below
	next   uint64        // the position of the next entry; end has a copy
	old    []uint64      // obsolete entries that are still to be deleted; never those of takeovers
	index  map[key]place
	sizes  []size // of the entries in [start, next)
	start  uint64
	live   int               // bytes of current documents
	total  int               // bytes of the entries in sizes
	first  map[key]store.Doc // what the takeover read, for the first Load
	ended  error             // why nothing is written any more
	closed bool

	end   atomic.Uint64 // next, for the lease
	lease *lease
}

type key struct{ kind, key string }

// place is where the current version of a document is.
type place struct {
	position, version uint64
	size              int
}

// size of an entry: all of it, and what of it is current.
type size struct {
	total, live int
	takeover    bool
}

func sizeOf(d store.Doc) int { return len(d.Kind) + len(d.Key) + len(d.Data) + overhead }

func keyOf(d store.Doc) key { return key{d.Kind, d.Key} }

// Save implements store.Store. Saves are written one after the other, each in one entry if its
// documents have at most 8 MiB. When the lease has ended, Save fails with ErrLeaseLost: a replica that
// kept writing would keep a standby from finding the end of the log.
func (s *Store) Save(ctx context.Context, docs []store.Doc) error {
	if err := store.Validate(docs); err != nil {
		return err
	}
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if !s.unguarded && !s.lease.lasts() {
		return fmt.Errorf("save %d documents: the lease has ended: %w", len(docs), ErrLeaseLost)
	}
	for len(docs) > 0 {
		n, err := s.save(ctx, docs)
		if err != nil {
			return err
		}
		docs = docs[n:]
	}
	s.clean(ctx)
	return nil
}

// take waits for the turn. Its errors are those of a store that cannot be used.
func (s *Store) take(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case s.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := s.ended
	if s.closed {
		err = store.ErrClosed
	}
	if err != nil {
		s.give()
	}
	return err
}

func (s *Store) give() { <-s.turn }

// save writes the first n of docs in one entry.
func (s *Store) save(ctx context.Context, docs []store.Doc) (n int, err error) {
	versions := map[key]uint64{} // by the entry that is being made
	var write []store.Doc
	bytes, more := 0, false
	for ; n < len(docs); n++ {
		d := docs[n]
		version, written := versions[keyOf(d)]
		if !written {
			version = s.index[keyOf(d)].version
		}
		next := version == d.Version-1 && (d.Data != nil || version > 0)
		if len(write) > 0 && bytes+sizeOf(d) > maxEntry {
			more = next
			break
		}
		if next {
			write, bytes = append(write, d), bytes+sizeOf(d)
			versions[keyOf(d)] = d.Version
			if d.Data == nil {
				versions[keyOf(d)] = 0
			}
			continue
		}
		if len(write) > 0 {
			break // decided against what is stored, when the documents before it are
		}
		stored, err := s.stored(ctx, d)
		if err != nil {
			return n, err
		}
		if store.Decide(stored, docs[n:]) == store.Refuse {
			return n, store.Conflict(d, stored.Version)
		}
	}
	if len(write) == 0 {
		return n, nil
	}
	done, err := s.append(ctx, Entry{Start: s.start, Docs: write, More: more})
	if err != nil {
		return 0, err
	}
	if !done {
		return 0, nil // decide again
	}
	return n, nil
}

// stored returns the document under d's key.
func (s *Store) stored(ctx context.Context, d store.Doc) (store.Doc, error) {
	at, ok := s.index[keyOf(d)]
	if !ok {
		return store.Doc{}, nil
	}
	e, _, err := s.log.At(ctx, at.position)
	if err != nil {
		return store.Doc{}, err
	}
	for i := len(e.Docs) - 1; i >= 0; i-- {
		if keyOf(e.Docs[i]) == keyOf(d) {
			return e.Docs[i], nil
		}
	}
	return store.Doc{}, s.lost(ctx, at.position)
}

// append appends e at the next position. done is false if an earlier append of this replica, whose
// answer was lost, has that position: the caller decides again.
func (s *Store) append(ctx context.Context, e Entry) (done bool, err error) {
	e.Position, e.Epoch = s.next, s.epoch
	s.first = nil
	taken, err := s.log.Append(ctx, e)
	if err != nil {
		return false, err
	}
	if !taken {
		s.apply(e)
		return true, nil
	}
	there, ok, err := s.log.At(ctx, s.next)
	switch {
	case err != nil:
		return false, err
	case !ok || there.Epoch != s.epoch:
		s.ended = s.fenced(there.Epoch)
		return false, s.ended
	}
	s.apply(there)
	return false, nil
}

func (s *Store) fenced(by uint64) error {
	return fmt.Errorf("this replica was active in epoch %d, and epoch %d has begun: another replica has taken over: %w", s.epoch, by, store.ErrConflict)
}

// lost returns why the entry at a position is missing: a later active replica has trimmed the log, and
// its takeover is at this replica's next position; or the log is damaged.
func (s *Store) lost(ctx context.Context, position uint64) error {
	e, ok, err := s.log.At(ctx, s.next)
	if err != nil {
		return err
	}
	if ok && e.Epoch != s.epoch {
		s.ended = s.fenced(e.Epoch)
		return s.ended
	}
	return fmt.Errorf("%w: the log has no document of its entry %d; restore it from a backup", store.ErrCorrupt, position)
}

// apply adds an entry to the index.
func (s *Store) apply(e Entry) {
	all := overhead
	for _, d := range e.Docs {
		all += sizeOf(d)
	}
	s.sizes = append(s.sizes, size{total: all, takeover: e.Takeover != ""})
	s.total += all
	for _, d := range e.Docs {
		k := keyOf(d)
		if old, ok := s.index[k]; ok {
			s.live -= old.size
			s.sizes[old.position-s.start].live -= old.size
			delete(s.index, k)
		}
		if d.Data != nil {
			s.index[k] = place{e.Position, d.Version, sizeOf(d)}
			s.live += sizeOf(d)
			s.sizes[len(s.sizes)-1].live += sizeOf(d)
		}
	}
	s.next = e.Position + 1
	s.end.Store(s.next)
}

// clean shortens the log if much of it is obsolete: it appends the current documents of the oldest
// entries again, and then deletes these. Each Save cleans a bounded part. Errors show at the next
// append.
func (s *Store) clean(ctx context.Context) {
	if s.total <= 2*s.live+s.slack {
		return
	}
	carry := Entry{Start: s.start}
	bytes, reads := 0, 0
	for int(carry.Start-s.start) < min(len(s.sizes)-1, forgets) && bytes < carrySize && reads < carryReads {
		if s.sizes[carry.Start-s.start].live > 0 {
			docs, err := s.current(ctx, carry.Start)
			if err != nil {
				return
			}
			carry.Docs = append(carry.Docs, docs...)
			reads++
			bytes += s.sizes[carry.Start-s.start].live
		}
		carry.Start++
	}
	if carry.Start == s.start {
		return
	}
	if done, err := s.append(ctx, carry); err != nil || !done {
		return
	}
	s.forget(carry.Start)
	n := min(len(s.old), deletions)
	if s.log.Delete(ctx, s.old[:n]...) == nil {
		s.old = s.old[n:]
	}
}

// current returns the documents of an entry that no later one has changed.
func (s *Store) current(ctx context.Context, position uint64) ([]store.Doc, error) {
	e, ok, err := s.log.At(ctx, position)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, s.lost(ctx, position)
	}
	return s.currentOf(e), nil
}

// currentOf returns the documents of e that are current: an entry has several of one key, of which
// the last counts.
func (s *Store) currentOf(e Entry) (docs []store.Doc) {
	last := map[key]int{}
	for i, d := range e.Docs {
		last[keyOf(d)] = i
	}
	for i, d := range e.Docs {
		if at, ok := s.index[keyOf(d)]; ok && at.position == e.Position && last[keyOf(d)] == i {
			docs = append(docs, d)
		}
	}
	return docs
}

// forget removes the entries before start, which have no current documents, from the index.
func (s *Store) forget(start uint64) {
	for i, z := range s.sizes[:start-s.start] {
		s.total -= z.total
		if !z.takeover {
			s.old = append(s.old, s.start+uint64(i))
		}
	}
	s.sizes = append([]size(nil), s.sizes[start-s.start:]...)
	s.start = start
}

// Load implements store.Store.
func (s *Store) Load(ctx context.Context, fn func(store.Doc) error) error {
	if err := s.take(ctx); err != nil {
		return err
	}
	defer s.give()
	if s.first != nil {
		docs := s.first
		s.first = nil
		for _, d := range docs {
			if err := fn(d); err != nil {
				return err
			}
		}
		return ctx.Err()
	}
	n := 0
	err := s.log.Entries(ctx, func(e Entry) error {
		if e.Position < s.start || e.Position >= s.next {
			return nil
		}
		for _, d := range s.currentOf(e) {
			n++
			if err := fn(d); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	if n != len(s.index) {
		return fmt.Errorf("%w: the log has %d of %d documents; restore it from a backup", store.ErrCorrupt, n, len(s.index))
	}
	return nil
}

// read replaces the index by what the log has, and keeps the documents for the first Load. It fails
// with errGap if entries were trimmed meanwhile.
func (s *Store) read(ctx context.Context) (last Entry, err error) {
	var entries []Entry
	start := uint64(1)
	err = s.log.Entries(ctx, func(e Entry) error {
		start = max(start, e.Start)
		if e.Position < start && e.Takeover != "" {
			return nil
		}
		// A later entry may raise start: keep what may count until then.
		entries = append(entries, e)
		return nil
	})
	if err != nil {
		return Entry{}, err
	}
	s.index, s.first, s.sizes = map[key]place{}, map[key]store.Doc{}, nil
	s.live, s.total, s.start, s.next, s.old = 0, 0, start, start, nil
	for _, e := range entries {
		if e.Position < start {
			if e.Takeover == "" {
				s.old = append(s.old, e.Position)
			}
			continue
		}
		if e.Position != s.next {
			return Entry{}, fmt.Errorf("%w: entry %d follows %d", errGap, e.Position, s.next-1)
		}
		s.apply(e)
		for _, d := range e.Docs {
			if d.Data == nil {
				delete(s.first, keyOf(d))
			} else {
				s.first[keyOf(d)] = d
			}
		}
		last = e
	}
	return last, nil
}

// errGap means that positions are missing in the log.
var errGap = errors.New("the log has a gap")

// Empty reports whether the store has no document. It is for the first Load.
func (s *Store) Empty() bool {
	s.turn <- struct{}{}
	defer s.give()
	return len(s.index) == 0
}

// Position returns the position of the last entry. It is safe for concurrent use.
func (s *Store) Position() uint64 { return s.end.Load() - 1 }

// Close implements store.Store: it waits for a Save, releases the lease, and closes the log.
func (s *Store) Close() error {
	s.turn <- struct{}{}
	defer s.give()
	if s.closed {
		return nil
	}
	s.closed = true
	s.lease.release()
	return errors.Join(s.log.Close(), s.lease.log.Close())
}

// Active reports whether no other replica can have taken over. It is safe for concurrent use.
func (s *Store) Active() bool { return s.lease.lasts() }

// Hold renews the lease until ctx ends, and then returns nil. It fails with ErrLeaseLost if another
// replica has it, or if it could not be renewed in time. The caller then ends everything that uses
// the store. Close is called after Hold has returned.
func (s *Store) Hold(ctx context.Context) error { return s.lease.hold(ctx) }
