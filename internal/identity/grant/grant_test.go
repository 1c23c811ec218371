package grant_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/grant"
)

func hold(t *testing.T, s *grant.Set, life time.Duration, good func() error) (context.Context, func()) {
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
	var s grant.Set
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
	var s grant.Set
	ctx, release := hold(t, &s, time.Millisecond, func() error { return nil })
	defer release()
	ended(t, ctx)
}

// The right may end between authentication and Hold.
func TestARightThatEndedBeforeIsRefused(t *testing.T) {
	var s grant.Set
	if _, _, err := s.Hold(t.Context(), 0, func() error { return api.ErrUnauthenticated }); !errors.Is(err, api.ErrUnauthenticated) {
		t.Error(err)
	}
}

func TestARenewedRequestOutlivesItsFirstToken(t *testing.T) {
	var s grant.Set
	var first atomic.Bool // the first token has expired
	ctx, release := hold(t, &s, time.Hour, func() error {
		if first.Load() {
			return api.ErrUnauthenticated
		}
		return nil
	})
	name, ends := grant.Name(ctx)
	if name == "" || time.Until(ends) > time.Hour {
		t.Fatalf("named %q until %s", name, ends)
	}
	if err := s.Renew(name, time.Hour, func() error { return api.ErrForbidden }); !errors.Is(err, api.ErrForbidden) {
		t.Errorf("renewed by a right that is not good: %v", err)
	}
	if err := s.Renew(name+"x", time.Hour, func() error { return nil }); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("an unknown name: %v", err)
	}
	if err := s.Renew(name, time.Hour, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	first.Store(true)
	s.Recheck()
	if ctx.Err() != nil {
		t.Error("ended with its first token")
	}
	release()
	if err := s.Renew(name, time.Hour, func() error { return nil }); !errors.Is(err, api.ErrNotFound) {
		t.Errorf("a request that is over: %v", err)
	}
}
