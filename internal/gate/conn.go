package gate

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/fairshare"
)

// conn is a connection below TLS. It has either a place in one of the gate's pools or a turn to
// compute its handshake.
type conn struct {
	net.Conn
	gate  *Gate
	path  []string // of its address
	known bool     // a client at the address has authenticated recently
	head  []byte   // what Read returns first; used by the reader only

	gone chan struct{} // closed with the connection

	mu            sync.Mutex // guards the fields below; not held while a pool is called
	place         *fairshare.Place
	leave         func() // ends its turn
	closed        bool
	authenticated bool // see MarkAuthenticated
}

// enter takes a place in the reserve, if the address is known, or else among the strangers.
func (c *conn) enter() error {
	now := time.Now()
	var place *fairshare.Place
	err := errors.New("no client has authenticated from the address")
	evict := func() { c.drop() }
	if c.known {
		place, err = c.gate.reserve.Take(now, c.path, evict)
	}
	if err != nil {
		place, err = c.gate.strangers.Take(now, c.path, evict)
	}
	if err != nil {
		return err
	}
	return c.hold(place)
}

// hold gives the connection the place and releases its former one.
func (c *conn) hold(place *fairshare.Place) error {
	c.mu.Lock()
	old, closed := c.place, c.closed
	if !closed {
		c.place = place
	}
	c.mu.Unlock()
	if closed {
		place.Release()
		return errClosed
	}
	if old != nil {
		old.Release()
	}
	return nil
}

// promote moves the connection to a pool of authenticated connections. If that is full, the
// connection keeps its place.
func (c *conn) promote(pool *fairshare.Pool, path []string) error {
	place, err := pool.Take(time.Now(), path, func() { c.drop() })
	if err != nil {
		return err
	}
	return c.hold(place)
}

// drop closes a connection that lost its place. It does not block.
func (c *conn) drop() { go c.Close() }

// peek waits for the first byte.
func (c *conn) peek() error {
	var first [1]byte
	if _, err := c.Conn.Read(first[:]); err != nil {
		return err
	}
	c.head = append(c.head, first[0])
	return nil
}

// takeTurn waits until the connection may compute its handshake. It releases the connection's
// place, because connections with a turn are bounded separately.
func (c *conn) takeTurn(ctx context.Context) error {
	c.mu.Lock()
	place := c.place
	c.place = nil
	c.mu.Unlock()
	if place != nil {
		place.Release()
	}
	leave, err := c.gate.turns.Enter(ctx, time.Now(), c.path, c.known)
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.leave = leave
	closed := c.closed
	c.mu.Unlock()
	if closed {
		leave()
		return errClosed
	}
	return nil
}

// endTurn ends the connection's turn, if it has one, and takes a place again.
func (c *conn) endTurn() {
	c.mu.Lock()
	leave := c.leave
	c.leave = nil
	c.mu.Unlock()
	if leave == nil {
		return
	}
	leave()
	if c.enter() != nil {
		_ = c.Close()
	}
}

// Read implements net.Conn. It ends the turn, because a connection that waits for its peer does
// not compute.
func (c *conn) Read(p []byte) (int, error) {
	if len(c.head) > 0 {
		n := copy(p, c.head)
		c.head = c.head[n:]
		return n, nil
	}
	c.endTurn()
	return c.Conn.Read(p)
}

func (c *conn) Close() error {
	c.mu.Lock()
	place, leave, closed := c.place, c.leave, c.closed
	c.place, c.leave, c.closed = nil, nil, true
	c.mu.Unlock()
	if closed {
		return nil
	}
	defer close(c.gone) // after the descriptor is closed; Run waits for gone
	if place != nil {
		place.Release()
	}
	if leave != nil {
		leave()
	}
	return c.Conn.Close()
}
