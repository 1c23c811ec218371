package broker

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	mqtt "github.com/mochi-mqtt/server/v2"
	"github.com/mochi-mqtt/server/v2/packets"

	"github.com/treeline-edge/treeline/internal/bus"
)

// inboxSize is the number of messages that wait for a handler before publishers block.
const inboxSize = 1024

// inline is the bus of the broker's own process.
type inline struct {
	srv    *mqtt.Server
	upness bus.Upness
	wg     sync.WaitGroup
	done   chan struct{}

	mu     sync.Mutex // guards the fields below
	closed bool
	subs   []mqtt.InlineSubscription
}

var _ bus.Bus = (*inline)(nil)

func newInline(srv *mqtt.Server) *inline {
	b := &inline{srv: srv, done: make(chan struct{})}
	b.upness.Set(true)
	return b
}

// Publish returns when the message is queued for every subscriber, at either QoS.
func (b *inline) Publish(ctx context.Context, m bus.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(m.Payload) > bus.MaxPayload {
		return fmt.Errorf("publish %d bytes to %s: %w", len(m.Payload), m.Topic, bus.ErrTooBig)
	}
	select {
	case <-b.done:
		return fmt.Errorf("publish to %s: %w", m.Topic, bus.ErrClosed)
	default:
	}
	if err := b.srv.Publish(m.Topic, bytes.Clone(m.Payload), m.Retain, m.QoS); err != nil {
		return fmt.Errorf("publish to %s: %w: %w", m.Topic, bus.ErrRefused, err)
	}
	return nil
}

func (b *inline) Subscribe(ctx context.Context, filter string, qos byte, fn func(bus.Message)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if !mqtt.IsValidFilter(filter, false) || mqtt.IsSharedFilter(filter) {
		return fmt.Errorf("subscribe to %q: not a filter: %w", filter, bus.ErrRefused)
	}
	inbox := make(chan bus.Message, inboxSize)
	put := func(pk packets.Packet, retained bool) {
		m := bus.Message{
			Topic: pk.TopicName, Payload: bytes.Clone(pk.Payload),
			QoS: min(pk.FixedHeader.Qos, qos), Retain: retained,
		}
		select {
		case inbox <- m:
		case <-b.done:
		}
	}
	// Messages that are published meanwhile wait until the retained messages are in the inbox, so
	// that no old state follows a new one.
	primed := make(chan struct{})

	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return fmt.Errorf("subscribe to %s: %w", filter, bus.ErrClosed)
	}
	sub := mqtt.InlineSubscription{
		Subscription: packets.Subscription{Identifier: len(b.subs) + 1, Filter: filter, Qos: qos},
		Handler: func(_ *mqtt.Client, _ packets.Subscription, pk packets.Packet) {
			<-primed
			put(pk, false)
		},
	}
	b.subs = append(b.subs, sub)
	b.wg.Go(func() { b.deliver(inbox, fn) })
	b.mu.Unlock()

	defer close(primed)
	b.srv.Topics.InlineSubscribe(sub)
	for _, pk := range b.srv.Topics.Messages(filter) {
		put(pk, true)
	}
	return nil
}

func (b *inline) deliver(inbox <-chan bus.Message, fn func(bus.Message)) {
	for {
		select {
		case <-b.done:
			return
		default:
		}
		select {
		case m := <-inbox:
			fn(m)
		case <-b.done:
			return
		}
	}
}

func (b *inline) Up() <-chan bool { return b.upness.Watch() }

// release ends the subscriptions without waiting for their handlers.
func (b *inline) release() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return
	}
	b.closed = true
	close(b.done)
	for _, s := range b.subs {
		b.srv.Topics.InlineUnsubscribe(s.Identifier, s.Filter)
	}
}

func (b *inline) Close() error {
	b.release()
	b.upness.Close()
	b.wg.Wait()
	return nil
}
