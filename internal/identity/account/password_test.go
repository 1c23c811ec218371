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

// With any number of concurrent sign-ins, the number of hashes and of waiters is bounded, and a sign-in
// from another address waits for at most one of them.
func TestSignInsAreBounded(t *testing.T) {
	h := newHasher(Cost{64, 1, 1})
	ctx, cancel := context.WithCancel(WithOrigin(context.Background(), []string{"flood", "flood"}, true))
	var leaves []func()
	for range hashesAtOnce {
		leave, err := h.enter(ctx)
		if err != nil {
			t.Fatal(err)
		}
		leaves = append(leaves, leave)
	}
	done := make(chan error, 100)
	for range 100 {
		go func() {
			leave, err := h.enter(ctx)
			if err == nil {
				leave()
			}
			done <- err
		}()
	}
	for range 100 - 64 { // those beyond the share of one address
		if err := <-done; !errors.Is(err, api.ErrTooMany) {
			t.Fatalf("one over the share: %v", err)
		}
	}
	fresh := make(chan error, 1)
	go func() {
		_, err := h.matches(WithOrigin(context.Background(), []string{"other", "other"}, true), "", "x")
		fresh <- err
	}()
	for {
		if _, waiting := h.turns.Load(); waiting == 65 {
			break
		}
		runtime.Gosched()
	}
	leaves[0]()
	if err := <-fresh; err != nil {
		t.Errorf("a sign-in from another address: %v", err)
	}
	cancel()
	leaves[1]()
	for range 64 {
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
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
