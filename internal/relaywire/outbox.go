package relaywire

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// outboxBytes is what waits at most for a connection. What is more is dropped, as
	// a full queue of a router would.
	outboxBytes = 256 << 10
	// keptBytes is the largest buffer that is kept for the next messages: what a burst
	// needed is not held for a quiet connection.
	keptBytes = 16 << 10
	// stuck is how long a write may take before the connection counts as dead.
	stuck = 30 * time.Second
)

// Outbox is what waits to be written to a stream. Put may be called from anywhere
// and never waits; one goroutine is in Run.
type Outbox struct {
	wake chan struct{} // of capacity 1: there is something to write

	mu     sync.Mutex // guards the field below
	queued []byte     // framed, as it goes out
}

// NewOutbox returns an empty one.
func NewOutbox() *Outbox { return &Outbox{wake: make(chan struct{}, 1)} }

// Put queues a message, whose bytes it copies; false: there is no room.
func (o *Outbox) Put(parts ...[]byte) bool {
	n := 0
	for _, p := range parts {
		n += len(p)
	}
	if n > MaxMessage {
		return false
	}
	o.mu.Lock()
	room := len(o.queued)+n+2 <= outboxBytes
	if room {
		o.queued = append(o.queued, byte(n>>8), byte(n))
		for _, p := range parts {
			o.queued = append(o.queued, p...)
		}
	}
	o.mu.Unlock()
	if room {
		select {
		case o.wake <- struct{}{}:
		default:
		}
	}
	return room
}

// Run writes what is put, all that there is at once, until ctx ends (nil) or the
// connection fails.
func (o *Outbox) Run(ctx context.Context, conn net.Conn) error {
	var spare []byte
	for {
		select {
		case <-o.wake:
		case <-ctx.Done():
			return nil
		}
		o.mu.Lock()
		out := o.queued
		o.queued = spare[:0]
		o.mu.Unlock()
		if spare = out; cap(spare) > keptBytes {
			spare = nil
		}
		_ = conn.SetWriteDeadline(time.Now().Add(stuck))
		if _, err := conn.Write(out); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		} else if err != nil {
			return nil
		}
	}
}
