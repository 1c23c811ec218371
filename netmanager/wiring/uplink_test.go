package wiring

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// A node engine says that the link is up once it reads: the end of the one before it
// must have been told by then.
func TestNobodyReadsBeforeTheEndOfTheLastIsTold(t *testing.T) {
	u := &uplink{log: slog.New(slog.DiscardHandler)}
	reads, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gone, broken := 0, errors.New("connection reset")
	err := u.read(ctx, func(api.NetEvent) error { return broken }, func() {
		gone++
		go func() {
			ended <- u.read(ctx, func(api.NetEvent) error { close(reads); return nil }, func() {})
		}()
		select {
		case <-reads:
			t.Error("another one reads already")
		case <-time.After(100 * time.Millisecond):
		}
	})
	if !errors.Is(err, broken) || gone != 1 {
		t.Fatalf("the end was told %d times: %v", gone, err)
	}
	<-reads
	replaced := make(chan error, 1)
	go func() { replaced <- u.read(ctx, func(api.NetEvent) error { return nil }, func() {}) }()
	if err := <-ended; !errors.Is(err, api.ErrConflict) {
		t.Errorf("one that was replaced: %v", err)
	}
	cancel()
	<-replaced
}
