package relaywire

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// outboxBytes bounds the queue of a connection. Further messages are dropped.
	outboxBytes = 256 << 10
	// keptBytes is the largest buffer that is reused, so that an idle connection does not keep
	// the memory of a burst.
	keptBytes = 16 << 10
	// writeTimeout is how long a write may take before the connection has failed.
	writeTimeout = 30 * time.Second
)

// Outbox queues messages for a stream. Put may be called concurrently and does not block; one
// goroutine calls Run.
type Outbox struct {
	wake chan struct{} // of capacity 1: queued is not empty

	mu     sync.Mutex // guards the field below
	queued []byte     // framed
}

// NewOutbox returns an empty outbox.
func NewOutbox() *Outbox { return &Outbox{wake: make(chan struct{}, 1)} }

// Put queues a copy of a message, given in parts. It returns false if the message is too long or
// the queue is full.
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
		o.queued = AppendMessage(o.queued, parts...)
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

// Run writes queued messages to conn until ctx ends or conn is closed, and then returns nil, or
// until a write fails.
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
		_ = conn.SetWriteDeadline(time.Now().Add(writeTimeout))
		if _, err := conn.Write(out); err != nil && !errors.Is(err, net.ErrClosed) {
			return err
		} else if err != nil {
			return nil
		}
	}
}
