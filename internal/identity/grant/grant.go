// Package grant cancels requests whose authorization ends: the token expires or is revoked, or
// its user is deleted, disabled or loses a role. The APIs of the root and of clusters register
// every authenticated request in a Set, so that each log, watch or capture is cancelled
// independently of its handler.
//
//	var set grant.Set[User]
//	ctx, release, err := set.Hold(r.Context(), life, check)
//	defer release()
//	set.Offer(ctx, w.Header(), user) // a stream: send its name for Renew
//	err = set.Renew(name, life, check)
//	set.Recheck()                    // after users, tokens or revocations have changed
package grant

import (
	"context"
	"crypto/rand"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// ErrEnded is the cause of a context whose authorization has ended.
var ErrEnded = fmt.Errorf("the authorization of this request has ended, authenticate again: %w", api.ErrUnauthenticated)

// Set has the authorizations of the current requests. O identifies the user who opened a stream.
// The zero value is ready to use. It is safe for concurrent use. Its size is the number of
// requests, which the servers bound.
type Set[O any] struct {
	mu    sync.Mutex // guards the fields below and those of each held
	held  map[*held[O]]struct{}
	named map[string]*held[O]
}

type held[O any] struct {
	ctx    context.Context
	cancel context.CancelCauseFunc

	check  func() error
	timer  *time.Timer
	ends   time.Time // zero: never
	name   string
	opener O
}

type key struct{}

// Hold returns a context that is cancelled with ctx, after life (0: no limit), or by a Recheck
// for which check returns an error. Hold registers the request, so that no Recheck is missed, and
// then calls check and returns its error. The caller calls release when the request is over.
func (s *Set[O]) Hold(ctx context.Context, life time.Duration, check func() error) (_ context.Context, release func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &held[O]{cancel: cancel}
	h.ctx = context.WithValue(ctx, key{}, h)
	s.mu.Lock()
	if s.held == nil {
		s.held, s.named = map[*held[O]]struct{}{}, map[string]*held[O]{}
	}
	s.held[h] = struct{}{}
	h.set(life, check)
	s.mu.Unlock()
	release = func() {
		s.mu.Lock()
		if h.timer != nil {
			h.timer.Stop()
		}
		delete(s.held, h)
		delete(s.named, h.name)
		s.mu.Unlock()
		cancel(nil)
	}
	if err := check(); err != nil {
		release()
		return nil, nil, err
	}
	return h.ctx, release, nil
}

// set sets the lifetime and the check of the request. The caller holds Set.mu.
func (h *held[O]) set(life time.Duration, check func() error) {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.check, h.timer, h.ends = check, nil, time.Time{}
	if life != 0 {
		h.timer = time.AfterFunc(life, func() { h.cancel(ErrEnded) })
		h.ends = time.Now().Add(life)
	}
}

// Offer sets the response headers with which the opener of a stream can renew the request of ctx:
// its name for Renew and its remaining lifetime in seconds. It sets none if the request is not
// held or does not expire.
func (s *Set[O]) Offer(ctx context.Context, header http.Header, opener O) {
	h, _ := ctx.Value(key{}).(*held[O])
	if h == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.held[h]; !ok || h.ends.IsZero() {
		return
	}
	if h.name == "" {
		h.name = rand.Text()
		s.named[h.name] = h
	}
	h.opener = opener
	header.Set("Treeline-Stream", h.name)
	header.Set("Treeline-Stream-Life", strconv.FormatFloat(time.Until(h.ends).Seconds(), 'f', 3, 64))
}

// Renew replaces the lifetime and the check of the named request. The name is not a credential:
// authorize must refuse tokens of other users than the opener. It returns the new check. Renew fails
// with ErrNotFound if the request is over or its authorization has ended.
func (s *Set[O]) Renew(name string, life time.Duration, authorize func(opener O) (check func() error, err error)) error {
	over := fmt.Errorf("stream %q does not exist or has ended: %w", name, api.ErrNotFound)
	s.mu.Lock()
	h := s.named[name]
	if h == nil {
		s.mu.Unlock()
		return over
	}
	opener := h.opener
	s.mu.Unlock()
	check, err := authorize(opener)
	if err == nil {
		err = check()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.named[name] != h || h.ctx.Err() != nil || h.timer != nil && !h.timer.Stop() { // the timer cancels asynchronously
		s.mu.Unlock()
		return over
	}
	h.set(life, check)
	s.mu.Unlock()
	if err := check(); err != nil { // a Recheck before set has used the old check
		h.cancel(fmt.Errorf("%w: %w", ErrEnded, err))
		return err
	}
	return nil
}

// Recheck cancels the requests whose check fails.
func (s *Set[O]) Recheck() {
	s.mu.Lock()
	checks := make(map[*held[O]]func() error, len(s.held))
	for h := range s.held {
		checks[h] = h.check
	}
	s.mu.Unlock()
	for h, check := range checks {
		if err := check(); err != nil {
			h.cancel(fmt.Errorf("%w: %w", ErrEnded, err))
		}
	}
}
