// Package streams splices bulk streams (logs, answers of another tier's API). The requester
// sends an id to the tier below over its link, and that tier dials POST …/streams/<id> with
// the bytes as the request's body. A registry connects the two. Nothing dials a cluster or a
// node.
//
//	w, err := reg.Expect("cluster/munich", request)   // the requester
//	defer w.Close()
//	link.Send(wire.StreamRequest{ID: w.ID(), …})
//	body, err := w.Body(ctx)                          // waits for the dialled end
//
//	err := reg.Deliver(ctx, id, "cluster/munich", r.Body)  // the handler of the dialled end
package streams

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Registry has the expected streams. The zero value is ready; it is safe for concurrent use.
type Registry struct {
	mu      sync.Mutex // guards the fields below
	waiting map[string]*Wait
	long    *fairshare.Pool // made at first use
	short   *fairshare.Pool
	open    map[*Wait]struct{} // includes waiting
}

// Wait is one expected stream. Its owner closes it.
type Wait struct {
	reg    *Registry
	id     string
	from   string
	body   chan result // at most one, ever
	closed chan struct{}
	place  *fairshare.Place
	once   sync.Once
}

// result is the dialled end, or why there is none.
type result struct {
	body io.Reader
	err  error
}

// Expect registers a stream from the peer named from. Too many are ErrTooMany or
// ErrUnavailable (a *fairshare.Full). A stream ends early if another holder takes its place.
func (r *Registry) Expect(from string, req wire.StreamRequest) (*Wait, error) {
	secret := make([]byte, 18)
	if _, err := rand.Read(secret); err != nil {
		return nil, fmt.Errorf("draw a stream's id: %w", err)
	}
	w := &Wait{
		reg: r, id: base64.RawURLEncoding.EncodeToString(secret), from: from,
		body: make(chan result, 1), closed: make(chan struct{}),
	}
	r.mu.Lock()
	defer r.mu.Unlock() // a newcomer may evict w before it is entered below; end waits for that
	place, err := r.pool(req).Take(time.Now(), holder(req), func() { go r.end(w, errEvicted) })
	if err != nil {
		return nil, err
	}
	w.place = place
	if r.waiting == nil {
		r.waiting, r.open = map[string]*Wait{}, map[*Wait]struct{}{}
	}
	r.waiting[w.id] = w
	r.open[w] = struct{}{}
	return w, nil
}

var errEvicted = fmt.Errorf("stream ended: another tenant took its place, try again: %w", api.ErrTooMany)

// pool returns the pool of the stream. The caller holds mu.
func (r *Registry) pool(req wire.StreamRequest) *fairshare.Pool {
	if r.long == nil {
		r.long, r.short = fairshare.NewPool(askedLong, fairshare.Keep), fairshare.NewPool(askedShort, fairshare.Keep)
	}
	if long(req) {
		return r.long
	}
	return r.short
}

// end closes the stream; Body returns why if it has not returned yet.
func (r *Registry) end(w *Wait, why error) {
	r.mu.Lock()
	if r.waiting[w.id] == w {
		delete(r.waiting, w.id)
		w.body <- result{err: why}
	}
	r.mu.Unlock()
	w.Close()
}

// Open returns the number of open and expected streams.
func (r *Registry) Open() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.open)
}

// End ends all streams of the peer, including expected ones, because its certificate was
// revoked.
func (r *Registry) End(from string) {
	r.mu.Lock()
	var all []*Wait
	for w := range r.open {
		if w.from == from {
			all = append(all, w)
		}
	}
	r.mu.Unlock()
	for _, w := range all {
		r.end(w, fmt.Errorf("%s was removed: %w", from, api.ErrNotFound))
	}
}

// Deliver passes body to the requester of stream id from the peer, and returns when the
// requester has closed it or ctx ends. A stream that is not expected, or from another peer, is
// ErrNotFound; an id is valid once. A requester that closes before the body's end is no error:
// the caller ends the request.
func (r *Registry) Deliver(ctx context.Context, id, from string, body io.Reader) error {
	w, err := r.settle(id, from, result{body: body})
	if err != nil {
		return err
	}
	fairshare.Endures(ctx)
	select {
	case <-w.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Fail reports to the requester of stream id from the peer that there will be none, and why.
// It refuses what Deliver refuses.
func (r *Registry) Fail(id, from string, why error) error {
	_, err := r.settle(id, from, result{err: why})
	return err
}

func (r *Registry) settle(id, from string, res result) (*Wait, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.waiting[id]
	if w == nil || w.from != from {
		return nil, fmt.Errorf("stream %q: it is not expected (any more): %w", id, api.ErrNotFound)
	}
	delete(r.waiting, id)
	w.body <- res
	return w, nil
}

// ID returns the stream's id, to be sent to the peer only.
func (w *Wait) ID() string { return w.id }

// Body waits for the dialled end, or for the peer's error; ctx bounds the wait (ErrTimeout).
// The body may be read until Close, which interrupts a read if the body is an HTTP request's.
func (w *Wait) Body(ctx context.Context) (io.Reader, error) {
	select {
	case r := <-w.body:
		return r.body, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a stream from %s: %w: %w", w.from, api.ErrTimeout, ctx.Err())
	}
}

// Stream is Body for a caller that waits no longer than limit. Close of the stream closes w; an
// error has closed it.
func (w *Wait) Stream(ctx context.Context, limit time.Duration) (io.ReadCloser, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	body, err := w.Body(ctx)
	if err != nil {
		w.Close()
		return nil, err
	}
	return stream{body, w}, nil
}

type stream struct {
	io.Reader
	wait *Wait
}

// Close implements io.Closer.
func (s stream) Close() error {
	s.wait.Close()
	return nil
}

// Close ends the stream; Deliver returns. It may be called more than once.
func (w *Wait) Close() {
	w.once.Do(func() {
		close(w.closed)
		w.place.Release()
		w.reg.mu.Lock()
		defer w.reg.mu.Unlock()
		delete(w.reg.waiting, w.id)
		delete(w.reg.open, w)
	})
}
