// Package mem is a bus in memory: a hub that behaves like a broker, for tests
// and simulations on one machine. Links are cut, mended and made lossy by hand.
//
//	hub := mem.New()
//	cluster := hub.Cluster()
//	node := hub.Node("n1", nil)
package mem

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/topic"
	"github.com/treeline-edge/treeline/internal/bus"
)

// Hub is the broker. Its zero value is not usable; see New.
type Hub struct {
	mu       sync.Mutex // guards the hub, its clients and their subscriptions
	down     bool
	retained map[string]bus.Message
	clients  []*Client
}

// New makes a hub that is up.
func New() *Hub { return &Hub{retained: map[string]bus.Message{}} }

// Options describes one client of a hub.
type Options struct {
	ID           string                   // a second client with the same ID takes over; "" never does
	Will         *bus.Message             // published when the link drops, not on Close
	MayPublish   func(topic string) bool  // nil: everything
	MaySubscribe func(filter string) bool // nil: everything
}

// Node is the client of a node, with a node's rights.
func (h *Hub) Node(id api.NodeID, will *bus.Message) *Client {
	return h.Client(Options{
		ID:           string(id),
		Will:         will,
		MayPublish:   func(t string) bool { return topic.MayPublish(id, t) },
		MaySubscribe: func(f string) bool { return topic.MaySubscribe(id, f) },
	})
}

// Cluster is a client that may do everything.
func (h *Hub) Cluster() *Client { return h.Client(Options{}) }

// Client connects a client.
func (h *Hub) Client(o Options) *Client {
	c := &Client{hub: h, o: o, linked: true}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.clients = append(h.clients, c)
	h.settle(c)
	return c
}

// Stop takes the hub down: every client loses its connection, and its will is
// lost with the hub.
func (h *Hub) Stop() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = true
	for _, c := range h.clients {
		c.up = false
		c.upness.Set(false)
	}
}

// Start brings the hub up again; it has forgotten its retained messages if forget is set.
func (h *Hub) Start(forget bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = false
	if forget {
		clear(h.retained)
	}
	for _, c := range slices.Clone(h.clients) {
		h.settle(c)
	}
}

// settle connects a client that can be connected. The caller holds the lock.
func (h *Hub) settle(c *Client) {
	if c.up || h.down || !c.linked || c.closed {
		return
	}
	for _, other := range h.clients {
		if other != c && c.o.ID != "" && other.o.ID == c.o.ID && other.up {
			other.linked = false // two clients of one id would take over from each other for ever
			h.drop(other, false)
		}
	}
	c.up = true
	for _, s := range c.subs {
		h.replay(s)
	}
	c.upness.Set(true)
}

// drop ends a connection without a farewell. The caller holds the lock.
func (h *Hub) drop(c *Client, will bool) {
	if !c.up {
		return
	}
	c.up = false
	c.upness.Set(false)
	if w := c.o.Will; will && w != nil && (c.o.MayPublish == nil || c.o.MayPublish(w.Topic)) {
		h.spread(*w)
	}
}

// spread delivers a message to all whom it concerns. The caller holds the lock.
func (h *Hub) spread(m bus.Message) {
	if m.Retain {
		if len(m.Payload) == 0 {
			delete(h.retained, m.Topic)
		} else {
			h.retained[m.Topic] = m
		}
	}
	m.Retain = false
	for _, c := range h.clients {
		for _, s := range c.subs {
			if c.up && bus.Match(s.filter, m.Topic) {
				s.give(m)
			}
		}
	}
}

// replay delivers the retained messages that a subscription asks for.
func (h *Hub) replay(s *subscription) {
	topics := make([]string, 0, len(h.retained))
	for t := range h.retained {
		if bus.Match(s.filter, t) {
			topics = append(topics, t)
		}
	}
	slices.Sort(topics)
	for _, t := range topics {
		s.give(h.retained[t])
	}
}

// Client is one connection to a hub. It is a bus.Bus.
type Client struct {
	hub    *Hub
	o      Options
	upness bus.Upness
	wg     sync.WaitGroup

	// Guarded by the hub's lock.
	linked, up, closed bool
	lose               func(bus.Message) bool
	subs               []*subscription
}

var _ bus.Bus = (*Client)(nil)

// SetLink cuts the client's link, as a pulled cable that the broker notices at
// once (its will is published), or mends it.
func (c *Client) SetLink(up bool) {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	c.linked = up
	if up {
		c.hub.settle(c)
	} else {
		c.hub.drop(c, true)
	}
}

// SetLoss has lose decide which messages vanish, in both directions and at
// either QoS. nil loses none. It runs under the hub's lock and must not call it.
func (c *Client) SetLoss(lose func(bus.Message) bool) {
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	c.lose = lose
}

// Publish hands a message to the hub, which has delivered it to every inbox
// when Publish returns. What the client may not publish fails with ErrRefused.
func (c *Client) Publish(ctx context.Context, m bus.Message) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(m.Payload) > bus.MaxPayload {
		return fmt.Errorf("publish %d bytes to %s: %w", len(m.Payload), m.Topic, bus.ErrTooBig)
	}
	m.Payload = bytes.Clone(m.Payload)
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("publish to %s: %w", m.Topic, bus.ErrClosed)
	case !c.up:
		return fmt.Errorf("publish to %s: %w", m.Topic, bus.ErrDown)
	case c.o.MayPublish != nil && !c.o.MayPublish(m.Topic):
		return fmt.Errorf("publish to %s: %w", m.Topic, bus.ErrRefused)
	case c.lose != nil && c.lose(m):
		return nil
	}
	c.hub.spread(m)
	return nil
}

// Subscribe is as bus.Bus has it. While the link is down it takes effect later.
func (c *Client) Subscribe(ctx context.Context, filter string, qos byte, fn func(bus.Message)) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	c.hub.mu.Lock()
	defer c.hub.mu.Unlock()
	switch {
	case c.closed:
		return fmt.Errorf("subscribe to %s: %w", filter, bus.ErrClosed)
	case !bus.ValidFilter(filter) || c.o.MaySubscribe != nil && !c.o.MaySubscribe(filter):
		return fmt.Errorf("subscribe to %s: %w", filter, bus.ErrRefused)
	}
	s := &subscription{client: c, filter: filter, qos: qos, wake: make(chan struct{}, 1)}
	c.subs = append(c.subs, s)
	c.wg.Go(func() { s.run(fn) })
	if c.up {
		c.hub.replay(s)
	}
	return nil
}

// Up is as bus.Bus has it.
func (c *Client) Up() <-chan bool { return c.upness.Watch() }

// Close leaves the hub without a will and waits for the handlers to return.
func (c *Client) Close() error {
	c.hub.mu.Lock()
	if !c.closed {
		c.closed, c.up = true, false
		c.hub.clients = slices.DeleteFunc(c.hub.clients, func(o *Client) bool { return o == c })
		for _, s := range c.subs {
			close(s.wake)
		}
		c.subs = nil
	}
	c.hub.mu.Unlock()
	c.upness.Close()
	c.wg.Wait()
	return nil
}

// subscription is a filter with an inbox that a goroutine empties. The inbox has
// no limit: this bus is for tests, and blocking in the hub would hide deadlocks.
type subscription struct {
	client *Client
	filter string
	qos    byte
	wake   chan struct{} // closed at the end

	inbox []bus.Message // guarded by the hub's lock
}

// give puts a copy into the inbox. The caller holds the hub's lock.
func (s *subscription) give(m bus.Message) {
	if lose := s.client.lose; lose != nil && lose(m) {
		return
	}
	m.Payload = bytes.Clone(m.Payload)
	m.QoS = min(m.QoS, s.qos)
	s.inbox = append(s.inbox, m)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscription) run(fn func(bus.Message)) {
	mu := &s.client.hub.mu
	for range s.wake {
		for {
			mu.Lock()
			var m bus.Message
			ok := len(s.inbox) > 0 && !s.client.closed
			if ok {
				m, s.inbox = s.inbox[0], s.inbox[1:]
			}
			mu.Unlock()
			if !ok {
				break
			}
			fn(m)
		}
	}
}
