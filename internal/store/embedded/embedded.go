// Package embedded is a store in one file: a bbolt database that is synced before Save returns.
// One process at a time can open the file. A damaged file is refused and not changed.
//
// Saves that arrive while another is being written share one transaction and one sync.
//
//	s, err := embedded.Open("/var/lib/treeline/root.db")
//	if err != nil {
//		return err
//	}
//	defer s.Close()
package embedded

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"sync"
	"syscall"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"github.com/treeline-edge/treeline/internal/store"
)

// Store implements store.Store in a file.
type Store struct {
	path string
	db   *bolt.DB

	// turn is held by Close and by the Save that writes the queue's requests.
	turn   chan struct{}
	broken error // guarded by turn: why no more writes are allowed

	mu    sync.Mutex // guards queue
	queue []*request
}

type request struct {
	docs []store.Doc
	done chan error // of capacity one
}

// groupBytes is the size above which a transaction gets no further requests. It bounds how long
// the requests of a group wait.
const groupBytes = 8 << 20

// Save implements store.Store. It may wait for the sync of earlier saves. ctx does not
// interrupt a save that is being written.
func (s *Store) Save(ctx context.Context, docs []store.Doc) error {
	if err := store.Validate(docs); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	r := &request{docs: docs, done: make(chan error, 1)}
	s.mu.Lock()
	s.queue = append(s.queue, r)
	s.mu.Unlock()

	select {
	case err := <-r.done:
		return err
	case <-ctx.Done():
		if s.withdraw(r) {
			return ctx.Err()
		}
		return <-r.done
	case s.turn <- struct{}{}:
	}
	defer func() { <-s.turn }()
	// Earlier requests are written first and may fill several groups.
	for {
		select {
		case err := <-r.done:
			return err
		default:
			s.commit(s.group())
		}
	}
}

// withdraw removes r from the queue, unless its group is being written.
func (s *Store) withdraw(r *request) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.queue {
		if s.queue[i] == r {
			s.queue = append(s.queue[:i], s.queue[i+1:]...)
			return true
		}
	}
	return false
}

// group removes the first requests for one transaction from the queue.
func (s *Store) group() []*request {
	s.mu.Lock()
	defer s.mu.Unlock()
	n, size := 0, 0
	for n < len(s.queue) && (n == 0 || size < groupBytes) {
		for _, d := range s.queue[n].docs {
			size += len(d.Data)
		}
		n++
	}
	group := s.queue[:n:n]
	s.queue = s.queue[n:]
	return group
}

// commit writes a group in one transaction and answers each request. If a request is refused, the
// documents before the refused one stay written, and the other requests are not affected.
func (s *Store) commit(group []*request) {
	results := make([]error, len(group))
	err := s.update(func(tx *transaction) error {
		for i, r := range group {
			refused, err := tx.save(r.docs)
			if err != nil {
				return err
			}
			results[i] = refused
		}
		return nil
	})
	for i, r := range group {
		if err != nil {
			results[i] = err
		}
		r.done <- results[i]
	}
}

// update runs fn in one transaction, which is durable if update returns nil.
func (s *Store) update(fn func(*transaction) error) error {
	if s.broken != nil {
		return s.broken
	}
	btx, err := s.db.Begin(true)
	if err != nil {
		return s.failed(err)
	}
	tx, err := begin(btx)
	if err == nil {
		err = fn(tx)
	}
	if err == nil && tx.dirty {
		err = tx.finish()
	}
	if err != nil || !tx.dirty {
		_ = btx.Rollback()
		return s.failed(err)
	}
	return s.failed(btx.Commit())
}

// failed translates an error of bbolt. It sets broken if the error leaves the state of the disk
// unknown.
func (s *Store) failed(err error) error {
	if err == nil {
		return nil
	}
	var at *fs.PathError
	var errno syscall.Errno
	unsure := errors.As(err, &errno)
	if isFull(err) {
		// fdatasync returns a bare errno, a write returns one with a path.
		unsure = unsure && !errors.As(err, &at)
		err = fmt.Errorf("save to %s: free some space on its disk: %w (%w)", s.path, store.ErrFull, err)
	} else {
		err = fmt.Errorf("save to %s: %w", s.path, err)
	}
	// After a failed sync it is unknown whether the pages are on the disk, and the next sync would
	// not report it. Therefore a new process must read the file before the next write.
	if unsure {
		err = fmt.Errorf("%w; the store writes nothing more until the program is restarted and has read the file again", err)
		s.broken = err
	}
	return err
}

// isFull reports whether an error means a full disk. When bbolt grows the file, its error has only
// the text of the errno.
func isFull(err error) bool {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT} {
		if errors.Is(err, errno) || strings.Contains(err.Error(), errno.Error()) {
			return true
		}
	}
	return false
}

// Load implements store.Store, in the order of kind and key.
func (s *Store) Load(ctx context.Context, fn func(store.Doc) error) error {
	err := s.db.View(func(tx *bolt.Tx) error {
		var digest uint64
		err := tx.Bucket(docsBucket).ForEach(func(key, value []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			d, sum, err := decode(key, value)
			if err != nil {
				return corrupt(s.path, err)
			}
			digest += sum
			d.Data = append([]byte{}, d.Data...) // bbolt's memory is invalid after the transaction
			return fn(d)
		})
		if err != nil {
			return err
		}
		if err := checkDigest(tx.Bucket(metaBucket).Get(digestKey), digest); err != nil {
			return corrupt(s.path, err)
		}
		return nil
	})
	if errors.Is(err, bolterrors.ErrDatabaseNotOpen) {
		return store.ErrClosed
	}
	return err
}

// Close implements store.Store. It waits for a Save that is being written.
func (s *Store) Close() error {
	s.turn <- struct{}{}
	defer func() { <-s.turn }()
	s.broken = store.ErrClosed
	if err := s.db.Close(); err != nil {
		return fmt.Errorf("close %s: %w", s.path, err)
	}
	return nil
}

// transaction is a transaction of bbolt that keeps the digest up to date.
type transaction struct {
	meta, docs *bolt.Bucket
	digest     uint64
	dirty      bool
}

func begin(tx *bolt.Tx) (*transaction, error) {
	t := &transaction{meta: tx.Bucket(metaBucket), docs: tx.Bucket(docsBucket)}
	value := t.meta.Get(digestKey)
	if len(value) != 8 {
		return t, fmt.Errorf("%w: no digest", store.ErrCorrupt)
	}
	t.digest = binary.BigEndian.Uint64(value)
	return t, nil
}

// save writes docs until one is refused. Any other error invalidates the transaction.
func (t *transaction) save(docs []store.Doc) (refused, err error) {
	for i, d := range docs {
		key := docKey(d)
		var stored store.Doc
		var old, sum uint64
		if value := t.docs.Get(key); value != nil {
			if stored, old, err = decode(key, value); err != nil {
				return nil, fmt.Errorf("%w: %w", store.ErrCorrupt, err)
			}
		}
		switch store.Decide(stored, docs[i:]) {
		case store.Refuse:
			return store.Conflict(d, stored.Version), nil
		case store.Repeat:
			continue
		case store.Write:
		}
		if d.Data == nil {
			err = t.docs.Delete(key)
		} else {
			var value []byte
			value, sum = encode(key, d)
			err = t.docs.Put(key, value)
		}
		if err != nil {
			return nil, err
		}
		t.digest += sum - old
		t.dirty = true
	}
	return nil, nil
}

func (t *transaction) finish() error {
	return t.meta.Put(digestKey, encodeDigest(t.digest))
}
