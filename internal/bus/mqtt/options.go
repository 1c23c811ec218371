package mqtt

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/internal/bus"
)

// Options configures a client.
type Options struct {
	Addr     string // host:port of the broker; may be empty if Dialer or Endpoints is set
	ClientID string // required; the broker ends an older connection with the same id

	// TLS is used on every connection; nil: no TLS. GetClientCertificate is called at each full
	// handshake and may return a renewed certificate. Sessions are resumed while their certificate
	// is valid. NextProtos may contain "mqtt" for a port that is shared by ALPN. ServerName
	// defaults to Addr's host.
	TLS *tls.Config

	// Endpoints returns the endpoints of the broker, at least one, in the order in which to try
	// them. It is called before every attempt and is safe for concurrent use. If a connection
	// lasted MaxBackoff, its endpoint is tried again, else the next one. Default: Addr only.
	Endpoints func() []Endpoint

	// Hurry reports whether the client must reconnect soon, for example to renew a lease. The
	// waits between attempts are then short and constant (redial.Hurry). nil: never.
	Hurry func() bool

	// Fenced reports whether another process has the client's role now. The client then neither connects,
	// which would end the connection of the other one, nor publishes. nil: never.
	Fenced func() bool

	// Dialer opens the connection below TLS. It defaults to TCP to Addr.
	Dialer func(ctx context.Context) (net.Conn, error)

	Will *bus.Message // published by the broker when the connection is lost

	KeepAlive      time.Duration // silence after which a ping is sent, whose answer may take as long and at most 10 s; whole seconds, default 60 s
	ConnectTimeout time.Duration // for dialling, TLS and CONNECT together; default 15 s. If there are several endpoints, it begins with 1 s
	WriteTimeout   time.Duration // after which a blocked connection has failed; default 10 s

	// The mean wait before a reconnect grows from MinBackoff to MaxBackoff (see package redial).
	// It starts again after a connection that lasted MaxBackoff. Default: 500 ms and 30 s.
	MinBackoff, MaxBackoff time.Duration

	Log *slog.Logger // default slog.Default()

	turns int // index of the next endpoint; used by the keeper's goroutine only
}

// Endpoint is an address of a broker.
type Endpoint struct {
	Addr       string        // host:port
	NextProtos []string      // for ALPN; nil: those of Options.TLS
	KeepAlive  time.Duration // whole seconds; 0: that of Options
}

func (o *Options) at() Endpoint {
	all := o.Endpoints()
	return all[o.turns%len(all)]
}

// selectNext selects the next endpoint, unless the connection lasted MaxBackoff.
func (o *Options) selectNext(lasted time.Duration) {
	if lasted < o.MaxBackoff {
		o.turns = (o.turns + 1) % len(o.Endpoints())
	}
}

// connectTimeout returns the timeout of an attempt. With several endpoints it doubles after each round from 1 s, so that one
// on a machine that is gone does not keep the client from the others.
func (o *Options) connectTimeout(attempt int) time.Duration {
	n := len(o.Endpoints())
	if n == 1 {
		return o.ConnectTimeout
	}
	return min(o.ConnectTimeout, time.Second<<min(attempt/n, 10))
}

func (o *Options) complete() error {
	switch {
	case o.ClientID == "":
		return errors.New("mqtt: a client id is required")
	case o.Addr == "" && o.Dialer == nil && o.Endpoints == nil:
		return errors.New("mqtt: an address or a dialer is required")
	case o.KeepAlive < 0 || o.KeepAlive%time.Second != 0:
		return fmt.Errorf("mqtt: keepalive %s is not a whole number of seconds", o.KeepAlive)
	}
	o.KeepAlive = cmp.Or(o.KeepAlive, 60*time.Second)
	o.ConnectTimeout = cmp.Or(o.ConnectTimeout, 15*time.Second)
	o.WriteTimeout = cmp.Or(o.WriteTimeout, 10*time.Second)
	o.MinBackoff = cmp.Or(o.MinBackoff, 500*time.Millisecond)
	o.MaxBackoff = max(cmp.Or(o.MaxBackoff, 30*time.Second), o.MinBackoff)
	o.Log = cmp.Or(o.Log, slog.Default())
	if o.Endpoints == nil {
		only := []Endpoint{{Addr: o.Addr}}
		o.Endpoints = func() []Endpoint { return only }
	}
	if o.Hurry == nil {
		o.Hurry = func() bool { return false }
	}
	if o.Fenced == nil {
		o.Fenced = func() bool { return false }
	}
	if o.TLS == nil {
		return nil
	}
	o.TLS = o.TLS.Clone()
	if o.Addr != "" {
		if _, _, err := net.SplitHostPort(o.Addr); err != nil {
			return fmt.Errorf("mqtt: address %q: %w", o.Addr, err)
		}
	}
	if o.TLS.ClientSessionCache == nil {
		o.TLS.ClientSessionCache = tls.NewLRUClientSessionCache(2) // resumed handshakes are much cheaper
	}
	return nil
}

func (o *Options) dial(ctx context.Context, at Endpoint) (*watched, error) {
	var conn net.Conn
	var err error
	if o.Dialer != nil {
		conn, err = o.Dialer(ctx)
	} else {
		conn, err = (&net.Dialer{}).DialContext(ctx, "tcp", at.Addr)
	}
	if err != nil {
		return nil, err
	}
	if o.TLS != nil {
		secure := tls.Client(conn, o.tlsTo(at))
		if err := secure.HandshakeContext(ctx); err != nil {
			conn.Close()
			return nil, err
		}
		conn = secure
	}
	return &watched{Conn: conn}, nil
}

// tlsTo returns the TLS configuration for an endpoint. All share one session cache, whose keys are
// server names.
func (o *Options) tlsTo(at Endpoint) *tls.Config {
	host, _, err := net.SplitHostPort(at.Addr)
	if (o.TLS.ServerName != "" || err != nil) && at.NextProtos == nil {
		return o.TLS
	}
	conf := o.TLS.Clone()
	if conf.ServerName == "" {
		conf.ServerName = host
	}
	if at.NextProtos != nil {
		conf.NextProtos = at.NextProtos
	}
	return conf
}

// watched is a connection that works around two bugs of Paho: Paho ignores net.ErrClosed, so that
// it waits forever on a connection that was closed by another goroutine, and it treats a CONNACK
// with an unknown code as success although it closes the connection.
type watched struct {
	net.Conn
	closed atomic.Bool
}

var errGone = errors.New("mqtt: the network connection was closed")

func (c *watched) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, net.ErrClosed) {
		err = errGone
	}
	return n, err
}

func (c *watched) Close() error {
	c.closed.Store(true)
	return c.Conn.Close()
}
