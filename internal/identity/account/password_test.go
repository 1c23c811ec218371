package account

import (
	"context"
	"errors"
	"runtime"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func TestHashSaysItsCost(t *testing.T) {
	ctx := context.Background()
	small, big := newHasher(Cost{64, 1, 1}), newHasher(Cost{128, 2, 2})
	hash, err := small.hash(ctx, "correct horse")
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := big.matches(ctx, hash, "correct horse"); err != nil || !ok {
		t.Errorf("a hash of an earlier cost: %v, %v", ok, err)
	}
	for _, h := range []string{
		"", "x", hash + "x", "$argon2id$v=19$m=99999999,t=1,p=1$AAAAAAAAAAAAAAAA$AAAA",
		"$argon2id$v=19$m=64,t=1,p=1$AAAAAAAAAAAAAAAAAAAAAA$",
		"$argon2id$v=19$m=64,t=0,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA",
	} {
		if ok, err := small.matches(ctx, h, "correct horse"); ok || err != nil {
			t.Errorf("%q matches", h)
		}
	}
}

// However many sign in at once, only so many hashes take memory; the rest wait,
// and past that are sent away.
func TestSignInsAreBounded(t *testing.T) {
	h := newHasher(Cost{64, 1, 1})
	ctx, cancel := context.WithCancel(context.Background())
	for range hashesAtOnce {
		if err := h.enter(ctx); err != nil {
			t.Fatal(err)
		}
	}
	done := make(chan error)
	for range hashesWaiting {
		go func() { done <- h.enter(ctx) }()
	}
	for len(h.waiting) < cap(h.waiting) { // until all of them wait
		runtime.Gosched()
		select {
		case err := <-done:
			t.Fatalf("one more ran: %v", err)
		default:
		}
	}
	if _, err := h.matches(ctx, "", "x"); !errors.Is(err, api.ErrUnavailable) {
		t.Errorf("one too many: %v", err)
	}
	cancel()
	for range hashesWaiting {
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	for range hashesAtOnce {
		h.leave()
	}
	if ok, err := h.matches(context.Background(), "", "x"); ok || err != nil {
		t.Error(ok, err)
	}
}

func BenchmarkHash(b *testing.B) {
	h := newHasher(DefaultCost)
	for b.Loop() {
		if _, err := h.hash(context.Background(), "correct horse"); err != nil {
			b.Fatal(err)
		}
	}
}
