package grant_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/grant"
)

func hold(t *testing.T, s *grant.Set[string], life time.Duration, good func() error) (context.Context, func()) {
	t.Helper()
	ctx, release, err := s.Hold(t.Context(), life, good)
	if err != nil {
		t.Fatal(err)
	}
	return ctx, release
}

func ended(t *testing.T, ctx context.Context) {
	t.Helper()
	select {
	case <-ctx.Done():
	case <-time.After(time.Minute):
		t.Fatal("the request goes on")
	}
	if err := context.Cause(ctx); !errors.Is(err, grant.ErrEnded) || !errors.Is(err, api.ErrUnauthenticated) {
		t.Errorf("ended by %v", err)
	}
}

func TestARequestEndsWithItsRight(t *testing.T) {
	var s grant.Set[string]
	var bad atomic.Bool
	gone, release := hold(t, &s, time.Hour, func() error {
		if bad.Load() {
			return api.ErrUnauthenticated
		}
		return nil
	})
	defer release()
	other, releaseOther := hold(t, &s, 0, func() error { return nil })
	s.Recheck()
	if gone.Err() != nil {
		t.Fatal("ended while its right was good")
	}
	bad.Store(true)
	s.Recheck()
	ended(t, gone)
	if other.Err() != nil {
		t.Error("another request ended, too")
	}
	releaseOther()
	if err := context.Cause(other); errors.Is(err, grant.ErrEnded) {
		t.Error("a request that was over counts as ended by its right")
	}
}

func TestARequestEndsWhenItsTokenExpires(t *testing.T) {
	var s grant.Set[string]
	ctx, release := hold(t, &s, time.Millisecond, func() error { return nil })
	defer release()
	ended(t, ctx)
}

// The authorization may end between authentication and Hold.
func TestARightThatEndedBeforeIsRefused(t *testing.T) {
	var s grant.Set[string]
	if _, _, err := s.Hold(t.Context(), 0, func() error { return api.ErrUnauthenticated }); !errors.Is(err, api.ErrUnauthenticated) {
		t.Error(err)
	}
}

func TestARenewedRequestOutlivesItsFirstToken(t *testing.T) {
	var s grant.Set[string]
	var first atomic.Bool // the first token has expired
	ctx, release := hold(t, &s, time.Hour, func() error {
		if first.Load() {
			return api.ErrUnauthenticated
		}
		return nil
	})
	header := http.Header{}
	s.Offer(ctx, header, "alice")
	name := header.Get("Treeline-Stream")
	if life, err := strconv.ParseFloat(header.Get("Treeline-Stream-Life"), 64); name == "" || err != nil || life <= 0 || life > 3600 {
		t.Fatalf("the stream is offered as %v, want a name and a life of at most an hour", header)
	}
	renew := func(name, user string, good error) error {
		return s.Renew(name, time.Hour, func(opener string) (func() error, error) {
			if opener != user {
				return nil, api.ErrNotFound
			}
			return func() error { return good }, nil
		})
	}
	if err := renew(name, "alice", api.ErrForbidden); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("renewed by a right that is not good: %v", err)
	}
	if err := renew(name+"x", "alice", nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("an unknown name: %v", err)
	}
	if err := renew(name, "bob", nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("renewed by another user: %v", err)
	}
	if err := renew(name, "alice", nil); err != nil {
		t.Fatal(err)
	}
	first.Store(true)
	s.Recheck()
	if ctx.Err() != nil {
		t.Error("ended with its first token")
	}
	release()
	if err := renew(name, "alice", nil); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a request that is over: %v", err)
	}
}

// A request whose token has expired is cancelled, but registered until its handler returns.
func TestAnExpiredRequestIsNotRenewed(t *testing.T) {
	good := func() error { return nil }
	for name, authorize := range map[string]func(context.Context) (func() error, error){
		"before Renew": func(context.Context) (func() error, error) { return good, nil },
		"while Renew authorizes it": func(ctx context.Context) (func() error, error) {
			<-ctx.Done()
			return good, nil
		},
	} {
		var s grant.Set[string]
		ctx, release := hold(t, &s, time.Hour, good)
		header := http.Header{}
		s.Offer(ctx, header, "alice")
		stream := header.Get("Treeline-Stream")
		if err := s.Renew(stream, time.Millisecond, func(string) (func() error, error) { return good, nil }); err != nil {
			t.Fatal(err)
		}
		if name == "before Renew" {
			ended(t, ctx)
		}
		if err := s.Renew(stream, time.Hour, func(string) (func() error, error) { return authorize(ctx) }); !errors.Is(err, api.ErrNotFound) {
			t.Errorf("a request that ended %s: Renew returned %v, want ErrNotFound", name, err)
		}
		release()
	}
}
