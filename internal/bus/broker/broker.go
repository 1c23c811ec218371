// Package broker is the cluster's embedded MQTT 3.1.1 broker: mochi-mqtt for TLS connections whose
// client certificates identify nodes. A node may use its own topics only (see api/topic). The
// cluster uses Bus, which needs no connection and loses no messages. The broker stores nothing on
// disk: the cluster publishes its desired sets again when it starts.
//
//	b, err := broker.New(broker.Options{Identify: ids.Node})
//	err = b.ServeConn(ctx, conn)
//	b.Bus().Subscribe(ctx, topic.Alive.Every(), 0, received)
package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	mqtt "github.com/mochi-mqtt/server/v2"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/refusals"
)

// Options configures a broker.
type Options struct {
	// Identify returns the node of a verified connection, or refuses it. It is called again after
	// the connection is registered, to refuse a node that was revoked in between (see Disconnect).
	// Required.
	Identify func(tls.ConnectionState) (api.NodeID, error)

	MaxClients       int           // maximum number of connections; default 10,000
	ConnectBurst     int           // burst of new connections per node, at a rate of 1 per second; default 20
	HandshakeTimeout time.Duration // for TLS and CONNECT together; default 10 s

	Log *slog.Logger // default slog.Default()
}

var (
	sessionPlaces = fairshare.Declare(fairshare.Bound{
		Resource: "MQTT connections", Total: 10_000, Share: []int{4}, Per: "node",
		Beyond: "the node's oldest connection is closed; the total is max_nodes",
		Attack: "TestSessionsOfOneCertificateAreBounded",
	})
	sessionRates = fairshare.Declare(fairshare.Bound{
		Resource: "rates of new MQTT connections that are remembered", Total: 65536, Per: "node",
		Beyond: "20 at once and 1 a second per node, then the new connection is closed",
		Attack: "TestSessionsOfOneCertificateAreBounded",
	})
)

// Broker is a running broker. Close ends it.
type Broker struct {
	o      Options
	srv    *mqtt.Server
	stats  Stats
	bus    *inline
	places *fairshare.Pool  // places of connections, by node
	rates  *fairshare.Rates // of a node's new connections
	wg     sync.WaitGroup

	mu     sync.Mutex // guards the fields below
	closed bool
	conns  map[api.NodeID]map[*conn]struct{}
}

// New makes a broker. The cluster's bus works at once.
func New(o Options) (*Broker, error) {
	if o.Identify == nil {
		return nil, errors.New("broker: Identify is required")
	}
	o.MaxClients = cmp.Or(o.MaxClients, 10_000)
	o.HandshakeTimeout = cmp.Or(o.HandshakeTimeout, 10*time.Second)
	o.Log = cmp.Or(o.Log, slog.Default())
	places := sessionPlaces
	places.Total = o.MaxClients
	b := &Broker{
		o:      o,
		places: fairshare.NewPool(places, fairshare.Replace),
		rates:  fairshare.NewRates(sessionRates, 1, cmp.Or(o.ConnectBurst, 20)),
		conns:  map[api.NodeID]map[*conn]struct{}{},
	}
	limits := mqtt.NewDefaultServerCapabilities()
	limits.MaximumPacketSize = bus.MaxPayload + 1<<10 // the topic and the headers
	limits.MaximumQos = 1
	limits.MinimumProtocolVersion = 4
	limits.MaximumClientWritesPending = 256 // capacity of a channel, allocated for each client
	limits.MaximumInflight = 256
	limits.SharedSubAvailable = 0
	limits.TopicAliasMaximum = 0
	limits.MaximumMessageExpiryInterval = 0 // else desired sets would expire after a day
	b.srv = mqtt.New(&mqtt.Options{
		Capabilities: limits,
		InlineClient: true,
		Logger:       slog.New(slog.DiscardHandler), // it would log whole payloads
	})
	// mochi-mqtt's Serve is not used: it starts tickers that publish $SYS, stop the world to
	// measure memory, and expire sessions and messages.
	if err := b.srv.AddHook(&guard{srv: b.srv, stats: &b.stats, refused: refusals.New(o.Log, "refused a node"), sessions: map[string]*mqtt.Client{}}, nil); err != nil {
		return nil, fmt.Errorf("broker: %w", err)
	}
	b.bus = newInline(b.srv)
	return b, nil
}

// Bus returns the cluster's bus. It has all rights and loses no QoS 0 message: slow handlers slow
// down publishing nodes. Closing it leaves the broker running.
func (b *Broker) Bus() bus.Bus { return b.bus }

// Stats returns the broker's counters.
func (b *Broker) Stats() *Stats { return &b.stats }

// ServeConn serves a connection until it or ctx ends. Its listener must have verified a client
// certificate.
func (b *Broker) ServeConn(ctx context.Context, secure *tls.Conn) error {
	c, err := b.accept(ctx, secure)
	if err != nil {
		secure.Close()
		b.stats.Refusals.Add(1)
		b.o.Log.Debug("refused a connection", "remote", secure.RemoteAddr(), "error", err)
		return err
	}
	defer b.unregister(c)
	defer context.AfterFunc(ctx, func() { c.Close() })()
	return b.converse(c)
}

// accept performs the handshake, reads CONNECT and registers the connection.
func (b *Broker) accept(ctx context.Context, secure *tls.Conn) (_ *conn, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.o.HandshakeTimeout)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { secure.Close() })
	defer stop()
	if err := secure.HandshakeContext(ctx); err != nil {
		return nil, fmt.Errorf("TLS handshake: %w", err)
	}
	state := secure.ConnectionState()
	if len(state.VerifiedChains) == 0 {
		return nil, fmt.Errorf("no verified client certificate: %w", api.ErrUnauthenticated)
	}
	id, err := b.o.Identify(state)
	if err != nil {
		return nil, fmt.Errorf("identify: %w", err)
	}
	if !api.ValidMachineName(string(id)) {
		return nil, fmt.Errorf("identity %q is not of a node: %w", id, api.ErrUnauthenticated)
	}
	if err := b.rates.Allow(time.Now(), "", string(id)); err != nil {
		return nil, err
	}
	place, err := b.places.Take(time.Now(), []string{string(id)}, func() { go secure.Close() })
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			place.Release()
		}
	}()
	head, err := readConnect(secure)
	if errors.Is(err, errProtocol) {
		_, _ = secure.Write(connackProtocol) // best effort
	}
	if err != nil {
		return nil, err
	}
	if !stop() {
		return nil, ctx.Err()
	}
	c := &conn{Conn: secure, id: id, stats: &b.stats, head: head, wg: &b.wg, place: place}
	if err := b.register(c); err != nil {
		return nil, err
	}
	if again, err := b.o.Identify(state); err != nil || again != id {
		b.unregister(c)
		return nil, fmt.Errorf("identify %s again: %w", id, errors.Join(err, api.ErrUnauthenticated))
	}
	return c, nil
}

func (b *Broker) register(c *conn) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return bus.ErrClosed
	}
	if b.conns[c.id] == nil {
		b.conns[c.id] = map[*conn]struct{}{}
	}
	b.conns[c.id][c] = struct{}{}
	b.stats.Clients.Add(1)
	b.wg.Add(1)
	return nil
}

func (b *Broker) unregister(c *conn) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.conns[c.id], c)
	if len(b.conns[c.id]) == 0 {
		delete(b.conns, c.id)
	}
	c.place.Release()
	b.stats.Clients.Add(-1)
	b.wg.Done()
}

// converse runs mochi-mqtt on the connection. A packet that makes its parser panic ends this
// connection only.
func (b *Broker) converse(c *conn) (err error) {
	defer c.Close()
	defer func() {
		if p := recover(); p != nil {
			b.stats.Panics.Add(1)
			b.o.Log.Error("the broker's parser failed on a packet", "node", c.id, "remote", c.RemoteAddr(), "panic", p)
			err = fmt.Errorf("packet of %s: %v", c.id, p)
		}
	}()
	return b.srv.EstablishConnection("node", c)
}

// Disconnect ends all sessions of a node; their wills are published. Identify must refuse the node
// already, otherwise it reconnects.
func (b *Broker) Disconnect(id api.NodeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for c := range b.conns[id] {
		b.wg.Go(func() { c.Close() }) // TLS may wait for a slow peer
	}
}

// Recheck ends the connections that Identify refuses now, for example because the issuer of their certificates was
// retired. It pauses between two, so that nodes that have better certificates do not reconnect all at once.
func (b *Broker) Recheck(ctx context.Context, pause time.Duration) {
	b.mu.Lock()
	var all []*conn
	for _, set := range b.conns {
		for c := range set {
			all = append(all, c)
		}
	}
	b.mu.Unlock()
	for _, c := range all {
		secure, ok := c.Conn.(*tls.Conn)
		if !ok {
			continue
		}
		if id, err := b.o.Identify(secure.ConnectionState()); err == nil && id == c.id {
			continue
		}
		c.Close()
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// Close ends the connections and the bus, and returns when all goroutines have ended.
func (b *Broker) Close() error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		return nil
	}
	b.closed = true
	for _, set := range b.conns {
		for c := range set {
			b.wg.Go(func() { c.Close() })
		}
	}
	b.mu.Unlock()
	b.bus.release() // unblocks connections that wait for a handler's inbox
	b.wg.Wait()
	err := b.srv.Close()
	b.bus.Close()
	return err
}
