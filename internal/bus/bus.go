// Package bus carries messages between a cluster and its nodes: MQTT 3.1.1, or
// memory in tests. It promises little, so that every broker can keep it:
// messages may be lost, doubled, late and, between topics, out of order. What
// heals is repetition, above the bus.
package bus

import "context"

// Message is one message on a topic. The payload belongs to the receiver.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte // 0 or 1
	Retain  bool
}

// MaxPayload bounds a message; brokers are configured to refuse larger ones.
const MaxPayload = 1 << 20

// Bus publishes and subscribes.
//
// Publish hands the message over. At QoS 0 it may return before the broker has
// it; at QoS 1 it returns when the broker acknowledged it or ctx ends. It fails
// at once with ErrDown while there is no connection, so that nothing piles up;
// whoever published repeats the state when the link is up again.
//
// Subscribe calls fn for every message that matches the filter (MQTT's + and #),
// the retained one first, until the bus closes. fn runs on the bus's own
// goroutine, one call at a time for one subscription, and must not block. A
// subscription survives reconnects; each reconnect delivers retained messages
// again. A filter that the broker's ACL forbids fails with ErrRefused where the
// broker says so.
//
// Up reports changes of the connection, the present state first. It keeps only
// the newest.
//
// Close ends the bus and its goroutines; a graceful end publishes no will.
type Bus interface {
	Publish(ctx context.Context, m Message) error
	Subscribe(ctx context.Context, filter string, qos byte, fn func(Message)) error
	Up() <-chan bool
	Close() error
}
