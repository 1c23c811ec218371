package shared

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/internal/store"
)

// Copy is what a Follower keeps current. Its methods are called by one goroutine. After an error, Reset comes next.
type Copy interface {
	// Reset replaces all documents by docs, which have different keys, and their time by none.
	Reset(docs []store.Doc) error
	// Adopt adds, replaces, and deletes (those without Data) the documents of complete saves, in their order.
	Adopt(docs []store.Doc) error
	// Current says that the documents are those of the active replica at a time, or that this is not known any more (the
	// zero time).
	Current(asOf time.Time)
}

// How a Follower reads the log.
const (
	followEvery = 250 * time.Millisecond // at least
	followPause = 20 * time.Millisecond  // at most, when it is woken
	followRest  = 9                      // the pause after a poll, in times of what the poll took: a tenth of what one client could read
	followMost  = time.Second            // of that pause: a call that takes long waits for something
	followFor   = 30 * time.Second       // after the last Want
	rereadEvery = 5 * time.Second        // the whole log, if its end proves nothing
	followBatch = 64                     // entries of one poll, and of one query
	followSpan  = 100 * time.Millisecond // after which a poll begins no further read
	followBytes = 256 << 10              // of documents in one query, above which the next one is for one entry
)

// Follower keeps a copy of the documents of a log while somebody reads the copy. It writes nothing, and needs no lease.
//
// The copy is current as of the moment before these reads, in this order: the position after its last entry is free, and
// its last entry is there. Entries are deleted in the order of their positions, so that one which was stored behind the
// last entry has not been deleted before that one. This holds for entries of saves only. Takeovers are never deleted; a
// copy whose last entry is a takeover waits for the first save of the new active replica, which comes at once.
//
// A replica that loses a claim may store a takeover at a position that was trimmed. The entries that follow it are of
// another epoch, or there are none; both are found, and the whole log is read again.
type Follower struct {
	log, leases Log
	to          Copy
	slog        *slog.Logger

	wanted atomic.Int64 // the time of the last Want, in ns since began
	began  time.Time
	wake   chan struct{}

	position uint64 // of the last entry that was read; 0: the log is to be read as a whole
	last     Entry  // without documents
	held     []store.Doc
	most     int       // entries that the next query may return besides the first
	whole    *whole    // what was read of the whole log so far; nil: nothing, or all
	reread   time.Time // when the whole log was read last
}

// whole is the log from its start on while it is read. Entries may be trimmed meanwhile, at its start.
type whole struct {
	next    uint64         // the position that is read next
	known   uint64         // an entry at this position or behind it was stored
	start   uint64         // entries before it are obsolete
	missing uint64         // the highest position before next without an entry
	docs    map[key]placed // the last one of each key, also deleted ones
	last    Entry          // without documents
}

// placed is a document in the entry at a position.
type placed struct {
	position uint64
	doc      store.Doc
}

// NewFollower makes a Follower of the replica's log.
func (r *Replica) NewFollower(to Copy) *Follower {
	return &Follower{log: r.log, leases: r.leases, to: to, slog: r.o.Log, began: time.Now(), wake: make(chan struct{}, 1)}
}

// Want says that the copy is read now. The follower reads the log while that was less than 30 s ago. It is safe for
// concurrent use.
func (f *Follower) Want() {
	now := time.Since(f.began)
	if was := f.wanted.Swap(int64(now) + 1); was == 0 || now-time.Duration(was) > followFor {
		f.Wake()
	}
}

// Wake makes the follower read the log now, if the copy is wanted. It is safe for concurrent use.
func (f *Follower) Wake() {
	select {
	case f.wake <- struct{}{}:
	default:
	}
}

func (f *Follower) isWanted() bool {
	at := f.wanted.Load()
	return at > 0 && time.Since(f.began)-time.Duration(at) <= followFor
}

// Run follows the log until ctx ends. Errors of the log are retried.
func (f *Follower) Run(ctx context.Context) error {
	failing := false
	for ctx.Err() == nil {
		if !f.isWanted() {
			select {
			case <-f.wake:
			case <-ctx.Done():
			}
			continue
		}
		began := time.Now()
		err := f.Poll(ctx)
		pause := min(max(followPause, followRest*time.Since(began)), followMost)
		switch {
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, errCopy):
			pause = rereadEvery
		}
		if err != nil && !failing {
			f.slog.Warn("standby cannot follow the log of the active replica, retrying", "err", err)
		}
		failing = err != nil
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return nil
		}
		select {
		case <-time.After(max(0, followEvery-pause)):
		case <-f.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// forget makes the next Poll begin to read the whole log. Until it is read the copy has no known time.
func (f *Follower) forget() {
	f.whole = nil
	if f.position == 0 {
		return
	}
	f.position, f.held = 0, nil
	f.to.Current(time.Time{})
}

// Poll brings the copy towards the end of the log by at most 64 entries or what can be read in 100 ms, and tells it as of when it is current if that is known. Run
// calls it.
func (f *Follower) Poll(ctx context.Context) error {
	asOf, err := f.poll(ctx)
	if errors.Is(err, errCopy) {
		f.forget()
	}
	if err == nil && !asOf.IsZero() {
		f.to.Current(asOf)
	}
	return err
}

// errCopy marks an error of the copy, whose documents are not known then.
var errCopy = errors.New("the copy does not accept the documents")

func (f *Follower) poll(ctx context.Context) (time.Time, error) {
	polled := time.Now()
	for left := followBatch; left > 0 && time.Since(polled) < followSpan; {
		if f.position == 0 {
			n, err := f.readWhole(ctx, left)
			if err != nil || n == 0 {
				return time.Time{}, err
			}
			left -= n
			continue
		}
		began := time.Now()
		entries, err := f.read(ctx, f.position+1, left)
		switch {
		case err != nil:
			return time.Time{}, err
		case len(entries) == 0:
			return f.prove(ctx, began)
		}
		left -= len(entries)
		for _, e := range entries {
			if !f.follows(e) {
				f.forget()
				break
			}
			if err := f.adopt(e); err != nil {
				return time.Time{}, err
			}
		}
	}
	f.Wake() // there is more
	return time.Time{}, nil
}

// read returns the entries from a position on, n at most. If there are none, the position was free after the call began. A query for several
// follows one for the first, which alone is linearizable. Entries of megabytes are read one by one.
func (f *Follower) read(ctx context.Context, from uint64, n int) ([]Entry, error) {
	e, ok, err := f.log.At(ctx, from)
	if err != nil || !ok {
		return nil, err
	}
	all := []Entry{e}
	if n = min(n-1, f.most); n > 0 {
		more, err := f.log.Next(ctx, from+1, n)
		if err != nil {
			f.most = 0 // they may be too large for one answer
			return nil, err
		}
		all = append(all, more...)
	}
	bytes := 0
	for _, e := range all {
		for _, d := range e.Docs {
			bytes += sizeOf(d)
		}
	}
	if f.most = min(2*f.most+1, followBatch); bytes > followBytes {
		f.most = 0
	}
	return all, nil
}

// readWhole reads the next entries of the whole log, n at most, and replaces the copy after the last one. It returns how many positions it has
// looked at: 0 if there is nothing to read before the next poll.
func (f *Follower) readWhole(ctx context.Context, n int) (int, error) {
	w := f.whole
	if w == nil {
		w, err := f.findStart(ctx)
		if f.whole = w; w == nil {
			return 0, err
		}
		return 1, nil
	}
	entries, err := f.read(ctx, w.next, n)
	switch {
	case err != nil:
		return 0, fmt.Errorf("read the log: %w", err)
	case len(entries) > 0:
		for _, e := range entries {
			w.add(e)
		}
		return len(entries), nil
	case w.next <= w.known: // it was trimmed
		w.missing = w.next
		w.next++
	case w.missing >= w.start: // so was what follows
		found, err := f.findStart(ctx)
		if err != nil || found == nil || found.known <= w.known {
			return 0, err // later
		}
		w.known, w.start, w.next = found.known, max(w.start, found.start), max(w.next, found.start)
	default:
		return 1, f.replace(w)
	}
	return 1, nil
}

// findStart returns where the log starts, or nil if that is not known yet. The lease has the end of the log as of the last renewal. The
// entries from there on have the start, but for takeovers and what was trimmed since.
func (f *Follower) findStart(ctx context.Context) (*whole, error) {
	l, _, err := readLease(ctx, f.leases)
	if err != nil {
		return nil, fmt.Errorf("read the lease: %w", err)
	}
	end := max(l.Next, 2)
	for p := end - 1; p < end+followBatch; p++ {
		e, ok, err := f.log.At(ctx, p)
		switch {
		case err != nil:
			return nil, fmt.Errorf("read the log: %w", err)
		case ok && e.Takeover == "" && e.Start > 0:
			return &whole{next: e.Start, known: p, start: e.Start, docs: map[key]placed{}}, nil
		}
	}
	return nil, nil
}

// add adds the entry that is next.
func (w *whole) add(e Entry) {
	for _, d := range e.Docs {
		w.docs[keyOf(d)] = placed{e.Position, d}
	}
	w.start, w.next, w.last = max(w.start, e.Start), e.Position+1, e
	w.last.Docs = nil
}

// replace replaces the copy by the whole log.
func (f *Follower) replace(w *whole) error {
	docs := make([]store.Doc, 0, len(w.docs))
	for _, p := range w.docs {
		if p.position >= w.start && p.doc.Data != nil { // one before that was changed or deleted in an entry that was trimmed
			docs = append(docs, p.doc)
		}
	}
	f.to.Current(time.Time{})
	if err := f.to.Reset(docs); err != nil {
		return fmt.Errorf("%w: %w", errCopy, err)
	}
	f.position, f.last, f.held, f.whole, f.reread = w.last.Position, w.last, nil, nil, time.Now()
	return nil
}

// follows reports whether e can be the entry after the last one: one of the same epoch, or a takeover.
func (f *Follower) follows(e Entry) bool {
	if e.Takeover != "" {
		return e.Epoch == e.Position
	}
	return e.Epoch == f.last.Epoch
}

// adopt passes the documents of complete saves on. A save whose rest is missing at a takeover is all that there is of it.
func (f *Follower) adopt(e Entry) error {
	f.held = append(f.held, e.Docs...)
	f.position, f.last = e.Position, e
	f.last.Docs = nil
	if e.More {
		return nil
	}
	docs := f.held
	f.held = nil
	if len(docs) == 0 {
		return nil
	}
	if err := f.to.Adopt(docs); err != nil {
		return fmt.Errorf("%w: %w", errCopy, err)
	}
	return nil
}

// prove returns began if the log ends with the last entry, where the position after it was found to be free since began.
func (f *Follower) prove(ctx context.Context, began time.Time) (time.Time, error) {
	proves := f.position > 0 && f.last.Takeover == "" && !f.last.More
	if proves {
		e, ok, err := f.log.At(ctx, f.position)
		switch {
		case err != nil:
			return time.Time{}, err
		case ok && e.Epoch == f.last.Epoch && e.Takeover == "":
			return began, nil
		}
	} else if time.Since(f.reread) < rereadEvery {
		return time.Time{}, nil
	}
	// It was trimmed, or may have been.
	f.forget()
	f.Wake()
	return time.Time{}, nil
}
