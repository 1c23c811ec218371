// Package streams connects bulk streams (logs, answers of another tier's API, access to workloads)
// between tiers. The requester sends an id to the tier below over its link, and that tier dials
// POST …/streams/<id> with the bytes as the request's body. A Registry connects the two, because
// upper tiers cannot dial a cluster or a node. For a stream that carries bytes in both directions the
// tier below sends a second request, GET …/streams/<id>, whose answer's body has the requester's bytes.
//
//	w, err := reg.Expect("cluster/munich", request)   // the requester
//	defer w.Close()
//	link.Send(wire.StreamRequest{ID: w.ID(), …})
//	body, err := w.Body(ctx)                          // waits for the dialled end
//
//	end := streams.NewEnd(w, r)                       // the handler of the dialled end
//	err := reg.Deliver(ctx, id, "cluster/munich", end)
//	end.Finish(err)
//	err = reg.DeliverDown(ctx, id, "cluster/munich", end)  // of the second request
package streams

import (
	"context"
	"crypto/rand"
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
	down    map[string]*Wait // streams in both directions, until the requester can write
	long    *fairshare.Pool  // made at first use
	short   *fairshare.Pool
	open    map[*Wait]struct{} // all streams, including those in waiting
}

// Wait is one expected stream. Its owner closes it.
type Wait struct {
	reg    *Registry
	id     string
	from   string
	down   chan *End   // receives at most one
	body   chan result // receives at most one result
	closed chan struct{}
	place  *fairshare.Place
	once   sync.Once
}

// result is the body of the peer's request, or the reason why there is none.
type result struct {
	body io.Reader
	err  error
}

// Expect registers a stream from the peer named from. It fails with a *fairshare.Full (ErrTooMany
// or ErrUnavailable) if no place is free. A stream ends early if it is evicted for another holder.
func (r *Registry) Expect(from string, req wire.StreamRequest) (*Wait, error) {
	w := &Wait{reg: r, id: rand.Text(), from: from, body: make(chan result, 1), down: make(chan *End, 1), closed: make(chan struct{})}
	r.mu.Lock()
	defer r.mu.Unlock() // held until w is in the maps: end may be called for w before that
	place, err := r.pool(req).Take(time.Now(), Holder(req), func() { go r.end(w, errEvicted) })
	if err != nil {
		return nil, err
	}
	w.place = place
	if r.waiting == nil {
		r.waiting, r.down, r.open = map[string]*Wait{}, map[string]*Wait{}, map[*Wait]struct{}{}
	}
	r.waiting[w.id] = w
	if req.Duplex() {
		r.down[w.id] = w
	}
	r.open[w] = struct{}{}
	return w, nil
}

var errEvicted = fmt.Errorf("stream ended: another tenant took its place, try again: %w", api.ErrTooMany)

// pool returns the pool of the stream. The caller holds mu.
func (r *Registry) pool(req wire.StreamRequest) *fairshare.Pool {
	if r.long == nil {
		r.long, r.short = fairshare.NewPool(requestedLong, fairshare.Keep), fairshare.NewPool(requestedShort, fairshare.Keep)
	}
	if long(req) {
		return r.long
	}
	return r.short
}

// end closes the stream. If Body has not returned yet, it returns why.
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

// Deliver passes body to the requester of stream id, and returns when the requester has closed the
// stream, possibly before the body's end, or with ctx's error. It fails with ErrNotFound if the
// stream is not expected from the peer. An id is valid once.
func (r *Registry) Deliver(ctx context.Context, id, from string, body io.Reader) error {
	w, err := r.settle(id, from)
	if err != nil {
		return err
	}
	fairshare.ReleasePlace(ctx)
	w.body <- result{body: body}
	select {
	case <-w.closed:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Fail passes an error to the requester of stream id instead of a body. It fails like Deliver.
func (r *Registry) Fail(id, from string, why error) error {
	w, err := r.settle(id, from)
	if err == nil {
		w.body <- result{err: why}
	}
	return err
}

// settle returns the expected stream. The caller sends its result.
func (r *Registry) settle(id, from string) (*Wait, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	w := r.waiting[id]
	if w == nil || w.from != from {
		return nil, unknown(id)
	}
	delete(r.waiting, id)
	return w, nil
}

func unknown(id string) error {
	return fmt.Errorf("stream %q is unknown, delivered or closed: %w", id, api.ErrNotFound)
}

// ID returns the stream's id, which is a secret between requester and peer.
func (w *Wait) ID() string { return w.id }

// Body waits for the peer's body or error, or fails with ErrTimeout when ctx ends. The body may be
// read until Close, which interrupts a read if the body is that of an HTTP request.
func (w *Wait) Body(ctx context.Context) (io.Reader, error) {
	select {
	case r := <-w.body:
		return r.body, r.err
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for a stream from %s: %w: %w", w.from, api.ErrTimeout, ctx.Err())
	}
}

// Stream is Body with a limit on the wait. Closing the stream closes w. If Stream fails, w is
// closed.
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

func (s stream) Close() error {
	s.wait.Close()
	return nil
}

// Close ends the stream, so that Deliver returns. It may be called more than once.
func (w *Wait) Close() {
	w.once.Do(func() {
		close(w.closed)
		w.place.Release()
		w.reg.mu.Lock()
		defer w.reg.mu.Unlock()
		delete(w.reg.waiting, w.id)
		delete(w.reg.down, w.id)
		delete(w.reg.open, w)
	})
}
