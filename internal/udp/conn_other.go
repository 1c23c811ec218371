//go:build !linux

package udp

import (
	"fmt"
	"net"
	"net/netip"
)

// Conn is a socket. It is safe for concurrent use; each Sender and Receiver is for one goroutine.
// On this system it sends and receives one datagram at a time.
type Conn struct{ conn *net.UDPConn }

// Listen opens a socket on an address. The unspecified IPv6 address means both families. Port 0
// means any.
func Listen(at netip.AddrPort) (*Conn, error) {
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(at))
	if err != nil {
		return nil, fmt.Errorf("listen on UDP %s: %w", at, err)
	}
	_ = c.SetReadBuffer(bufferBytes) // up to the host's limit
	_ = c.SetWriteBuffer(bufferBytes)
	return &Conn{c}, nil
}

// Local returns the address that the socket is bound to.
func (c *Conn) Local() netip.AddrPort { return c.conn.LocalAddr().(*net.UDPAddr).AddrPort() }

// Close closes the socket. Blocked calls return net.ErrClosed.
func (c *Conn) Close() error { return c.conn.Close() }

// Receiver receives one datagram at a time.
type Receiver struct {
	c    *Conn
	room []byte
	m    Message
}

// NewReceiver returns a receiver for one goroutine.
func (c *Conn) NewReceiver() *Receiver { return &Receiver{c: c, room: make([]byte, 1<<16)} }

// Receive waits for messages and returns their number. They are valid until the next call. It
// returns net.ErrClosed after Close.
func (r *Receiver) Receive() (int, error) {
	n, from, err := r.c.conn.ReadFromUDPAddrPort(r.room)
	if err != nil {
		return 0, err
	}
	r.m = Message{From: netip.AddrPortFrom(from.Addr().Unmap(), from.Port()), Data: r.room[:n], Each: n}
	return 1, nil
}

// Message returns the message of the last Receive.
func (r *Receiver) Message(int) Message { return r.m }

// Sender sends one datagram at a time.
type Sender struct{ c *Conn }

// NewSender returns a sender for one goroutine.
func (c *Conn) NewSender() *Sender { return &Sender{c} }

// Send sends a run of datagrams of each bytes, of which the last may be shorter.
func (s *Sender) Send(to netip.AddrPort, run []byte, each int) error {
	return s.SendTails(to, run, each, 0)
}

// SendTails is Send without the first skip bytes of each datagram, which must be longer.
func (s *Sender) SendTails(to netip.AddrPort, run []byte, each, skip int) error {
	var first error
	for len(run) > 0 {
		n := min(each, len(run))
		if _, err := s.c.conn.WriteToUDPAddrPort(run[skip:n], to); err != nil && first == nil {
			first = err
		}
		run = run[n:]
	}
	return first
}
