// Package grant cancels requests whose authorization ends: the token expires or is
// revoked, or its user is deleted, disabled or loses a role. The APIs of both tiers hold
// every authenticated request in a Set, so that the context of a followed log, a watch or
// a capture is cancelled whatever handler serves it.
//
//	ctx, release, err := set.Hold(r.Context(), life, stillGood)
//	defer release()
//	set.Recheck()       // after users, tokens or revocations have changed
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

// Set holds the authorizations of requests under way. The zero value is ready to use. It
// is safe for concurrent use. Its size is the number of requests, which the servers
// bound.
type Set struct {
	mu    sync.Mutex // guards the fields below and those of each held
	held  map[*held]struct{}
	named map[string]*held
}

type held struct {
	set    *Set
	cancel context.CancelCauseFunc

	good  func() error
	timer *time.Timer
	ends  time.Time // zero: never
	name  string
}

type key struct{}

// Hold returns a context that is cancelled with ctx, after life, or by a Recheck for which
// good returns an error. It calls good once itself, after it has registered the request,
// so that no Recheck in between is missed, and returns its error. A life of 0 has no end.
// The caller calls release when the request is over.
func (s *Set) Hold(ctx context.Context, life time.Duration, good func() error) (_ context.Context, release func(), err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	h := &held{set: s, cancel: cancel}
	s.mu.Lock()
	if s.held == nil {
		s.held, s.named = map[*held]struct{}{}, map[string]*held{}
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

// hold sets the life and the check of the request. The caller holds set.mu.
func (h *held) hold(life time.Duration, good func() error) {
	if h.timer != nil {
		h.timer.Stop()
	}
	h.good, h.timer, h.ends = good, nil, time.Time{}
	if life != 0 {
		h.timer = time.AfterFunc(life, func() { h.cancel(ErrEnded) })
		h.ends = time.Now().Add(life)
	}
}

// Name returns a random name of the request of ctx, for Renew, and when its authorization
// expires. The name is "" for a request that is not held or does not expire.
func Name(ctx context.Context) (name string, ends time.Time) {
	h, _ := ctx.Value(key{}).(*held)
	if h == nil {
		return "", time.Time{}
	}
	h.set.mu.Lock()
	defer h.set.mu.Unlock()
	if _, ok := h.set.held[h]; !ok || h.ends.IsZero() {
		return "", time.Time{}
	}
	if h.name == "" {
		h.name = rand.Text()
		h.set.named[h.name] = h
	}
	return h.name, h.ends
}

// Offer says in the header of a stream's answer by which name the stream can be
// renewed, and for how long it goes on otherwise. A stream without a name is not told.
func Offer(ctx context.Context, h http.Header) (name string) {
	name, ends := Name(ctx)
	if name != "" {
		h.Set("Treeline-Stream", name)
		h.Set("Treeline-Stream-Life", strconv.FormatFloat(time.Until(ends).Seconds(), 'f', 3, 64))
	}
	return name
}

// Renew replaces the life and the check of the named request. The name is not a
// credential: good must check that the new token is of the same person. A request that is
// over is ErrNotFound.
func (s *Set) Renew(name string, life time.Duration, good func() error) error {
	if err := good(); err != nil {
		return err
	}
	s.mu.Lock()
	h := s.named[name]
	if h != nil {
		h.hold(life, good)
	}
	s.mu.Unlock()
	if h == nil {
		return fmt.Errorf("stream %q has ended: %w", name, api.ErrNotFound)
	}
	if err := good(); err != nil { // as in Hold: a Recheck may have come in between
		h.cancel(fmt.Errorf("%w: %w", ErrEnded, err))
		return err
	}
	return nil
}

// Recheck cancels the requests whose check fails.
func (s *Set) Recheck() {
	type right struct {
		*held
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
