// Package mqtt is the bus over MQTT 3.1.1 to any broker, with Eclipse Paho. It does not use Paho's
// reconnecting and storing, which queue unsent messages: callers repeat their state, and stale
// copies would accumulate. Each connection is a new Paho client with a clean session.
//
//	b, err := mqtt.Dial(mqtt.Options{Addr: "cluster:8883", ClientID: "n1", TLS: conf})
package mqtt

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"slices"
	"sync"
	"time"

	paho "github.com/eclipse/paho.mqtt.golang"

	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/bus/redial"
)

const (
	maxInFlight       = 64              // publishes that wait to be written or acknowledged
	disconnectTimeout = 2 * time.Second // maximum time to send DISCONNECT
	maxPingTimeout    = 10 * time.Second
	subRefused        = 0x80
)

var errFenced = errors.New("another process has the role of this client")

// Client is a bus.Bus that reconnects when its connection ends.
type Client struct {
	o      Options
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	upness bus.Upness
	wg     sync.WaitGroup // keep and the publishes under way

	mu      sync.Mutex // guards the fields below
	closed  bool
	subs    []*subscription // replaced as a whole, because dispatch reads it without the lock
	session *session        // nil while there is no connection
}

var _ bus.Bus = (*Client)(nil)

type subscription struct {
	filter string
	qos    byte
	fn     func(bus.Message)
}

// session is one connection.
type session struct {
	paho  paho.Client
	lost  chan struct{} // closed when the connection is gone
	once  sync.Once
	slots chan struct{}
	ready bool // all subscriptions are made again; guarded by Client.mu
}

func (s *session) end() { s.once.Do(func() { close(s.lost) }) }

// Dial checks the options and returns at once. The client connects, and reconnects, in the
// background until Close.
func Dial(o Options) (*Client, error) {
	if err := o.complete(); err != nil {
		return nil, err
	}
	c := &Client{o: o}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.wg.Go(c.keep)
	return c, nil
}

// keep keeps a connection until the bus closes.
func (c *Client) keep() {
	log := c.o.Log.With("client", c.o.ClientID)
	pace := redial.Pace{Min: c.o.MinBackoff, Max: c.o.MaxBackoff}
	for attempt := 0; ; attempt++ {
		at := c.o.at()
		lasted, err := c.connection(at, c.o.connectTimeout(attempt))
		if c.ctx.Err() != nil {
			return
		}
		if lasted >= c.o.MaxBackoff {
			attempt = 0
		}
		c.o.selectNext(lasted)
		wait := pace.Wait(attempt, c.o.Hurry(), rand.Float64())
		log.Warn("no connection to the broker", "broker", at.Addr, "retry", wait, "error", err)
		select {
		case <-time.After(wait):
		case <-c.ctx.Done():
			return
		}
	}
}

// connection makes one connection and returns when it has ended. lasted is how long it was up.
func (c *Client) connection(at Endpoint, timeout time.Duration) (lasted time.Duration, err error) {
	s, conn, err := c.connect(at, timeout)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	defer s.paho.Disconnect(uint(disconnectTimeout.Milliseconds())) // returns at once when the connection is gone
	defer s.end()
	defer c.release(s)
	if err := c.resubscribe(s, at); err != nil {
		return 0, fmt.Errorf("subscribe: %w", err)
	}
	since := time.Now()
	select {
	case <-s.lost:
		err = errors.New("connection lost")
	case <-c.ctx.Done():
	}
	return time.Since(since), err
}

func (c *Client) connect(at Endpoint, timeout time.Duration) (*session, net.Conn, error) {
	ctx, cancel := context.WithTimeout(c.ctx, timeout)
	defer cancel()
	conn, err := c.o.dial(ctx, at)
	if err != nil {
		return nil, nil, fmt.Errorf("dial: %w", err)
	}
	if c.o.Fenced() {
		conn.Close()
		return nil, nil, errFenced
	}
	s := &session{lost: make(chan struct{}), slots: make(chan struct{}, maxInFlight)}
	s.paho = paho.NewClient(c.pahoOptions(s, conn, cmp.Or(at.KeepAlive, c.o.KeepAlive)))
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	token := s.paho.Connect()
	<-token.Done() // ends also when conn is closed
	err = token.Error()
	if err == nil && conn.closed.Load() {
		err = bus.ErrRefused
	}
	if !stop() || err != nil {
		s.paho.Disconnect(0)
		conn.Close()
		return nil, nil, fmt.Errorf("connect: %w", errors.Join(err, ctx.Err()))
	}
	return s, conn, nil
}

func (c *Client) pahoOptions(s *session, conn net.Conn, keepAlive time.Duration) *paho.ClientOptions {
	p := paho.NewClientOptions().
		AddBroker("tcp://broker"). // required by Paho, not used: conn is open
		SetCustomOpenConnectionFn(func(*url.URL, paho.ClientOptions) (net.Conn, error) { return conn, nil }).
		SetClientID(c.o.ClientID).
		SetProtocolVersion(4).
		SetCleanSession(true).
		SetAutoReconnect(false).
		SetConnectRetry(false).
		SetOrderMatters(true).
		SetKeepAlive(keepAlive).
		SetPingTimeout(min(keepAlive, maxPingTimeout)).
		SetConnectTimeout(c.o.ConnectTimeout).
		SetWriteTimeout(c.o.WriteTimeout).
		SetConnectionLostHandler(func(paho.Client, error) { s.end() }).
		SetDefaultPublishHandler(func(_ paho.Client, m paho.Message) { c.dispatch(m) })
	if w := c.o.Will; w != nil {
		payload := w.Payload
		if len(payload) == 0 {
			payload = []byte{0} // mochi-mqtt refuses an empty will, although MQTT allows it
		}
		p.SetBinaryWill(w.Topic, payload, w.QoS, w.Retain)
	}
	return p
}

// resubscribe subscribes to all filters and then allows publishing, so that publishers receive
// the answers to their messages. A concurrent Subscribe uses the new session itself.
func (c *Client) resubscribe(s *session, at Endpoint) error {
	c.mu.Lock()
	c.session = s
	filters := make(map[string]byte, len(c.subs))
	for _, sub := range c.subs {
		filters[sub.filter] = max(filters[sub.filter], sub.qos)
	}
	c.mu.Unlock()
	refused, err := c.ask(c.ctx, s, filters)
	if err != nil {
		return err
	}
	for _, f := range refused {
		c.o.Log.Warn("broker refuses a subscription", "client", c.o.ClientID, "filter", f)
	}
	c.mu.Lock()
	s.ready = true
	c.mu.Unlock()
	c.upness.Set(true)
	c.o.Log.Info("connected to the broker", "client", c.o.ClientID, "broker", at.Addr)
	return nil
}

// ask subscribes on one connection and returns the filters that were refused.
func (c *Client) ask(ctx context.Context, s *session, filters map[string]byte) (refused []string, err error) {
	if len(filters) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.o.ConnectTimeout)
	defer cancel()
	token := s.paho.SubscribeMultiple(filters, nil)
	select {
	case <-token.Done():
	case <-s.lost:
		return nil, bus.ErrDown
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if err := token.Error(); err != nil {
		return nil, err
	}
	for f, code := range token.(*paho.SubscribeToken).Result() {
		if code == subRefused {
			refused = append(refused, f)
		}
	}
	return refused, nil
}

func (c *Client) release(s *session) {
	c.mu.Lock()
	if c.session == s {
		c.session = nil
	}
	c.mu.Unlock()
	c.upness.Set(false)
}

// dispatch calls the handlers of a message. It runs on Paho's single receiving goroutine.
func (c *Client) dispatch(m paho.Message) {
	c.mu.Lock()
	subs := c.subs
	c.mu.Unlock()
	given := false
	for _, s := range subs {
		if !bus.Match(s.filter, m.Topic()) {
			continue
		}
		payload := m.Payload()
		if given {
			payload = bytes.Clone(payload)
		}
		given = true
		s.fn(bus.Message{Topic: m.Topic(), Payload: payload, QoS: m.Qos(), Retain: m.Retained()})
	}
}

// Publish implements bus.Bus. If the topic is forbidden, the broker drops the message silently or
// ends the connection, because MQTT 3.1.1 has no error for this.
func (c *Client) Publish(ctx context.Context, m bus.Message) error {
	if len(m.Payload) > bus.MaxPayload {
		return fmt.Errorf("publish %d bytes to %s: %w", len(m.Payload), m.Topic, bus.ErrTooBig)
	}
	if err := c.publish(ctx, m); err != nil {
		return fmt.Errorf("publish to %s: %w", m.Topic, err)
	}
	return nil
}

func (c *Client) publish(ctx context.Context, m bus.Message) error {
	c.mu.Lock()
	s := c.session
	switch {
	case c.closed:
		c.mu.Unlock()
		return bus.ErrClosed
	case s == nil || !s.ready:
		c.mu.Unlock()
		return bus.ErrDown
	}
	c.wg.Add(1) // under the lock, so that it happens before Close waits
	c.mu.Unlock()

	select {
	case s.slots <- struct{}{}:
	case <-s.lost:
		c.wg.Done()
		return bus.ErrDown
	case <-ctx.Done():
		c.wg.Done()
		return ctx.Err()
	}
	// Paho does not support contexts: a publish may block until the write timeout. It keeps its
	// slot, which bounds the number of such publishes.
	result := make(chan error, 1)
	go func() {
		defer c.wg.Done()
		defer func() { <-s.slots }()
		if c.o.Fenced() {
			result <- bus.ErrDown
			return
		}
		token := s.paho.Publish(m.Topic, m.QoS, m.Retain, m.Payload)
		select {
		case <-token.Done():
			result <- token.Error()
		case <-s.lost:
			result <- bus.ErrDown
		}
	}()
	select {
	case err := <-result:
		if err != nil && !errors.Is(err, bus.ErrDown) {
			err = fmt.Errorf("%w: %w", bus.ErrDown, err)
		}
		return err
	case <-s.lost:
		return bus.ErrDown
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Subscribe implements bus.Bus. Without a connection it returns at once and takes effect with the
// next connection; a refusal is then logged only.
func (c *Client) Subscribe(ctx context.Context, filter string, qos byte, fn func(bus.Message)) error {
	if !bus.ValidFilter(filter) || qos > 1 {
		return fmt.Errorf("subscribe to %q at QoS %d: not a filter: %w", filter, qos, bus.ErrRefused)
	}
	sub := &subscription{filter: filter, qos: qos, fn: fn}
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return fmt.Errorf("subscribe to %s: %w", filter, bus.ErrClosed)
	}
	c.subs = append(slices.Clone(c.subs), sub)
	s := c.session
	c.mu.Unlock()
	if s == nil {
		return nil
	}
	refused, err := c.ask(ctx, s, map[string]byte{filter: qos})
	switch {
	case len(refused) > 0:
		err = bus.ErrRefused
	case err == nil:
		return nil
	case ctx.Err() == nil:
		s.end() // the connection failed; the next one subscribes again
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.subs = slices.DeleteFunc(slices.Clone(c.subs), func(s *subscription) bool { return s == sub })
	return fmt.Errorf("subscribe to %s: %w", filter, err)
}

// Connected reports whether there is a connection on which messages can be published.
func (c *Client) Connected() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.session != nil && c.session.ready
}

// Up implements bus.Bus.
func (c *Client) Up() <-chan bool { return c.upness.Watch() }

// Close sends DISCONNECT, so that no will is published, and returns when all goroutines have
// ended. A handler must not call it.
func (c *Client) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.cancel()
	c.wg.Wait()
	c.upness.Close()
	return nil
}
