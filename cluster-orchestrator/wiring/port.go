package wiring

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/identity/trust"
	"github.com/treeline-edge/treeline/internal/relaywire"
)

const (
	maxHandshakes = 256 // at once: a reconnect storm must not starve what runs
	handshakeTime = 10 * time.Second
	mqttProto     = "mqtt"
)

// port is the cluster's one port: TLS, on which ALPN tells MQTT and the relay from
// HTTP.
type port struct {
	ln    net.Listener
	conf  *tls.Config
	mqtt  func(context.Context, *tls.Conn) error // owns the connection
	relay func(context.Context, *tls.Conn) error // likewise; nil: there is none. Set before run
	limit int                                    // connections at once
	log   *slog.Logger

	web    chan net.Conn
	closed chan struct{}
	once   sync.Once
}

func newPort(ln net.Listener, v *trust.Verifier, cert func(*tls.ClientHelloInfo) (*tls.Certificate, error), limit int,
	mqtt func(context.Context, *tls.Conn) error, log *slog.Logger,
) *port {
	web := v.Server(cert, false)
	web.NextProtos = []string{"h2", "http/1.1"}
	bus := v.Server(cert, true)
	bus.NextProtos = []string{mqttProto}
	// The broker asks crypto/tls itself for a verified chain.
	bus.ClientAuth, bus.ClientCAs = tls.RequireAndVerifyClientCert, v.Roots
	relay := v.Server(cert, true)
	relay.NextProtos = []string{relaywire.Proto}
	web.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
		switch {
		case slices.Contains(h.SupportedProtos, mqttProto):
			return bus, nil
		case slices.Contains(h.SupportedProtos, relaywire.Proto):
			return relay, nil
		}
		return nil, nil
	}
	return &port{ln: ln, conf: web, mqtt: mqtt, limit: limit, log: log, web: make(chan net.Conn), closed: make(chan struct{})}
}

// run accepts connections until ctx ends, and waits for those of nodes.
func (p *port) run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	defer all.Wait()
	defer cancel()
	defer context.AfterFunc(ctx, func() { _ = p.ln.Close() })()
	room := make(chan struct{}, p.limit)
	slots := make(chan struct{}, maxHandshakes)
	for {
		c, err := p.ln.Accept()
		switch {
		case err == nil:
		case ctx.Err() != nil:
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		default: // out of descriptors, perhaps: others will close
			p.log.Warn("cannot accept a connection", "err", err)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
			}
			continue
		}
		select {
		case room <- struct{}{}:
		default:
			_ = c.Close()
			continue
		}
		all.Go(func() {
			defer func() { <-room }()
			p.greet(ctx, &heldConn{Conn: c, gone: make(chan struct{})}, slots)
		})
	}
}

// greet makes the handshake and hands the connection to whom it is for.
func (p *port) greet(ctx context.Context, held *heldConn, slots chan struct{}) {
	c := tls.Server(held, p.conf)
	select {
	case slots <- struct{}{}:
	case <-ctx.Done():
		_ = c.Close()
		return
	}
	shake, cancel := context.WithTimeout(ctx, handshakeTime)
	err := c.HandshakeContext(shake)
	cancel()
	<-slots
	if err != nil {
		p.log.Debug("handshake failed", "remote", c.RemoteAddr(), "err", err)
		_ = c.Close()
		return
	}
	switch c.ConnectionState().NegotiatedProtocol {
	case mqttProto:
		_ = p.mqtt(ctx, c) // counted and logged by the broker
		return
	case relaywire.Proto:
		p.serveRelay(ctx, c)
		return
	}
	select {
	case p.web <- c:
		select { // its place is taken until it is closed
		case <-held.gone:
		case <-ctx.Done():
		}
	case <-p.closed:
		_ = c.Close()
	case <-ctx.Done():
		_ = c.Close()
	}
}

func (p *port) serveRelay(ctx context.Context, c *tls.Conn) {
	if p.relay == nil {
		_ = c.Close()
		return
	}
	if err := p.relay(ctx, c); err != nil {
		p.log.Debug("a node's relay connection ended", "remote", c.RemoteAddr(), "err", err)
	}
}

// Accept is net.Listener's, for the HTTP server.
func (p *port) Accept() (net.Conn, error) {
	select {
	case c := <-p.web:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

// Close is net.Listener's. It ends the HTTP server's part of the port.
func (p *port) Close() error {
	p.once.Do(func() { close(p.closed) })
	return nil
}

// Addr is net.Listener's.
func (p *port) Addr() net.Addr { return p.ln.Addr() }

// heldConn says when it is closed. It is beneath TLS, for net/http asks for a
// *tls.Conn by its type.
type heldConn struct {
	net.Conn
	gone chan struct{}
	once sync.Once
}

// Close is net.Conn's.
func (h *heldConn) Close() error {
	h.once.Do(func() { close(h.gone) })
	return h.Conn.Close()
}
