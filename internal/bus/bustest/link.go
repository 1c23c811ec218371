package bustest

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
)

// Link is a network path that a test can cut, and that counts bytes. Its Dial fits
// mqtt.Options.Dialer.
type Link struct {
	Addr     string
	Sent     atomic.Int64 // bytes from the dialling side
	Received atomic.Int64
	Writes   atomic.Int64 // calls of Write by the dialling side
	Dials    atomic.Int64

	mu    sync.Mutex // guards the fields below
	cut   bool
	conns map[*linked]struct{}
}

var errCut = errors.New("bustest: the link is cut")

// Dial opens a connection, unless the link is cut.
func (l *Link) Dial(ctx context.Context) (net.Conn, error) {
	l.mu.Lock()
	cut := l.cut
	l.mu.Unlock()
	if cut {
		return nil, errCut
	}
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", l.Addr)
	if err != nil {
		return nil, err
	}
	l.Dials.Add(1)
	wrapped := &linked{Conn: c, link: l}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut {
		c.Close()
		return nil, errCut
	}
	if l.conns == nil {
		l.conns = map[*linked]struct{}{}
	}
	l.conns[wrapped] = struct{}{}
	return wrapped, nil
}

// Cut resets the connections and refuses new ones until Mend.
func (l *Link) Cut() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = true
	for c := range l.conns {
		if tcp, ok := c.Conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // Close sends RST, as after a crash
		}
		c.Conn.Close()
	}
	clear(l.conns)
}

// Mend ends Cut.
func (l *Link) Mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut = false
}

type linked struct {
	net.Conn
	link *Link
}

func (c *linked) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.link.Received.Add(int64(n))
	return n, err
}

func (c *linked) Write(p []byte) (int, error) {
	c.link.Sent.Add(int64(len(p))) // first, because the answer may arrive before Write returns
	c.link.Writes.Add(1)
	return c.Conn.Write(p)
}

func (c *linked) Close() error {
	c.link.mu.Lock()
	delete(c.link.conns, c)
	c.link.mu.Unlock()
	return c.Conn.Close()
}
