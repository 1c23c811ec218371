// Package grant cancels requests whose authorization ends: the token expires or is revoked, or
// its user is deleted, disabled or loses a role. The APIs of the root and of clusters register
// every authenticated request in a Set, so that each log, watch or capture is cancelled
// independently of its handler.
//
//	var set grant.Set[User]
//	ctx, release, err := set.Hold(r.Context(), life, stillGood)
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
	cancel context.CancelCauseFunc

	good   func() error
	timer  *time.Timer
	ends   time.Time // zero: never
	name   string
	opener O
}

type key struct{}

// Hold returns a context that is cancelled with ctx, after life (0: no limit), or by a Recheck
// for which good returns an error. Hold registers the request, so that no Recheck is missed, and
// then calls good and returns its error. The caller calls release when the request is over.
func (s *Set[O]) Hold(ctx context.Context, life time.Duration, good func() error) (_ context.Context, release func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &held[O]{cancel: cancel}
	s.mu.Lock()
	if s.held == nil {
		s.held, s.named = map[*held[O]]struct{}{}, map[string]*held[O]{}
	}
	s.held[h] = struct{}{}
	h.hold(life, good)
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
	ctx = context.WithValue(ctx, key{}, h)
	if err := good(); err != nil {
		release()
		return nil, nil, err
	}
	return ctx, release, nil
}

// hold sets the lifetime and the check of the request. The caller holds Set.mu.
func (h *held[O]) hold(life time.Duration, good func() error) {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.good, h.timer, h.ends = good, nil, time.Time{}
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
// fresh must refuse tokens of other users than the opener. It returns the new check. Renew fails
// with ErrNotFound if the request is over.
func (s *Set[O]) Renew(name string, life time.Duration, fresh func(opener O) (good func() error, err error)) error {
	gone := fmt.Errorf("stream %q does not exist or has ended: %w", name, api.ErrNotFound)
	s.mu.Lock()
	h := s.named[name]
	if h == nil {
		s.mu.Unlock()
		return gone
	}
	opener := h.opener
	s.mu.Unlock()
	good, err := fresh(opener)
	if err == nil {
		err = good()
	}
	if err != nil {
		return err
	}
	s.mu.Lock()
	if s.named[name] != h {
		s.mu.Unlock()
		return gone
	}
	h.hold(life, good)
	s.mu.Unlock()
	if err := good(); err != nil { // a Recheck before hold has used the old check
		h.cancel(fmt.Errorf("%w: %w", ErrEnded, err))
		return err
	}
	return nil
}

// Recheck cancels the requests whose check fails.
func (s *Set[O]) Recheck() {
	type right struct {
		*held[O]
		good func() error
	}
	s.mu.Lock()
	all := make([]right, 0, len(s.held))
	for h := range s.held {
		all = append(all, right{h, h.good})
	}
	s.mu.Unlock()
	for _, h := range all {
		if err := h.good(); err != nil {
			h.cancel(fmt.Errorf("%w: %w", ErrEnded, err))
		}
	}
}
