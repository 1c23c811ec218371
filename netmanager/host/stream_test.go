package host

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A node engine reports that the link is up once it reads. The end of the reader before must
// have been reported by then.
func TestEndOfAReaderIsReportedBeforeTheNextReads(t *testing.T) {
	s := NewStream(slog.New(slog.DiscardHandler))
	reads, ended := make(chan struct{}), make(chan error, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	gone, broken := 0, errors.New("connection reset")
	err := s.Read(ctx, func(wire.NetEvent) error { return broken }, func() {
		gone++
		go func() {
			ended <- s.Read(ctx, func(wire.NetEvent) error { close(reads); return nil }, func() {})
		}()
		select {
		case <-reads:
			t.Error("the next reader reads before the end of the last is reported")
		case <-time.After(100 * time.Millisecond):
		}
	})
	if !errors.Is(err, broken) || gone != 1 {
		t.Fatalf("the end was reported %d times with %v, want once with the error of write", gone, err)
	}
	<-reads
	replaced := make(chan error, 1)
	go func() { replaced <- s.Read(ctx, func(wire.NetEvent) error { return nil }, func() {}) }()
	if err := <-ended; !errors.Is(err, api.ErrConflict) {
		t.Errorf("a replaced reader ended with %v, want ErrConflict", err)
	}
	cancel()
	<-replaced
}
