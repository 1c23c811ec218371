// Package bus carries messages between a cluster and its nodes over MQTT 3.1.1. Its guarantees are
// weak, so that every broker meets them: messages may be lost, duplicated, delayed and, between
// topics, reordered. Its users repeat messages.
package bus

import "context"

// Message is one message on a topic. The payload belongs to the receiver.
type Message struct {
	Topic   string
	Payload []byte
	QoS     byte // 0 or 1
	Retain  bool
}

// MaxPayload bounds a message, in bytes. Brokers are configured to refuse larger ones.
const MaxPayload = 1 << 20

// Bus publishes and subscribes.
//
// Publish sends the message. At QoS 0 it may return before the broker has it; at QoS 1 it returns
// when the broker has acknowledged it or ctx ends. It fails with ErrDown while there is no
// connection and queues nothing; the caller repeats its state when the connection is up again.
//
// Subscribe calls fn for every message that matches the filter (MQTT's + and #), retained messages
// first, until the bus closes. fn runs on the bus's goroutine, one call at a time per
// subscription, and must not block. A subscription survives reconnects; each reconnect delivers
// retained messages again. It fails with ErrRefused if the broker reports that its ACL forbids the
// filter.
//
// Up returns a channel with the current state of the connection, then with the newest change.
//
// Close ends the bus and its goroutines. The broker then does not publish the will.
type Bus interface {
	Publish(ctx context.Context, m Message) error
	Subscribe(ctx context.Context, filter string, qos byte, fn func(Message)) error
	Up() <-chan bool
	Close() error
}
