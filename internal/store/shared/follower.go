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
	followFor   = 30 * time.Second       // after the last Want
	rereadEvery = 5 * time.Second        // the whole log, if its end proves nothing
	followBatch = 256                    // entries between two looks at the clock
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
	log  Log
	to   Copy
	slog *slog.Logger

	wanted atomic.Int64 // the time of the last Want, in ns since began
	began  time.Time
	wake   chan struct{}

	position uint64 // of the last entry that was read; 0: the log is to be read as a whole
	last     Entry  // without documents
	held     []store.Doc
	reread   time.Time // when the whole log was read last
}

// NewFollower makes a Follower of the replica's log.
func (r *Replica) NewFollower(to Copy) *Follower {
	return &Follower{log: r.log, to: to, slog: r.o.Log, began: time.Now(), wake: make(chan struct{}, 1)}
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
			// Later, the whole log takes less time than its entries one by one.
			if f.position > 0 {
				f.forget()
				_ = f.to.Reset(nil)
			}
			select {
			case <-f.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := f.Poll(ctx)
		pause := followPause
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
		case <-time.After(followEvery - followPause):
		case <-f.wake:
		case <-ctx.Done():
		}
	}
	return nil
}

// forget makes the next Poll read the whole log. Until then the copy has no known time.
func (f *Follower) forget() {
	if f.position == 0 {
		return
	}
	f.position, f.held = 0, nil
	f.to.Current(time.Time{})
}

// Poll brings the copy to the end of the log, and tells it as of when it is current if that is known. Run calls it.
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
	for again := 0; again < 3; again++ {
		if f.position == 0 {
			if err := f.readAll(ctx); err != nil {
				return time.Time{}, err
			}
		}
		for range followBatch {
			began := time.Now()
			e, ok, err := f.log.At(ctx, f.position+1)
			switch {
			case err != nil:
				return time.Time{}, err
			case !ok:
				return f.prove(ctx, began)
			}
			if !f.follows(e) {
				f.forget()
				break
			}
			if err := f.adopt(e); err != nil {
				return time.Time{}, err
			}
		}
		if f.position > 0 {
			f.Wake() // there is more
			return time.Time{}, nil
		}
	}
	return time.Time{}, nil
}

// readAll replaces the copy by the whole log.
func (f *Follower) readAll(ctx context.Context) error {
	s := &Store{log: f.log}
	last, err := s.read(ctx)
	if err != nil {
		return fmt.Errorf("read the log: %w", err)
	}
	docs := make([]store.Doc, 0, len(s.first))
	for _, d := range s.first {
		docs = append(docs, d)
	}
	f.to.Current(time.Time{})
	if err := f.to.Reset(docs); err != nil {
		return fmt.Errorf("%w: %w", errCopy, err)
	}
	f.position, f.last, f.held, f.reread = s.next-1, last, nil, time.Now()
	f.last.Docs = nil
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
