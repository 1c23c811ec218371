package broker

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
)

const (
	maxPending   = 4 << 20          // maximum bytes that wait for a slow node: several desired sets
	writeTimeout = 10 * time.Second // for a node that does not read at all
)

var errSlow = errors.New("the client reads too slowly")

// conn is a node's connection for mochi-mqtt.
//
// mochi-mqtt writes while it holds locks that publishers need, so that one node that stops reading
// would block messages to all nodes. Therefore Write does not block: it queues, a goroutine writes
// the queue, and a connection with too long a queue is closed.
type conn struct {
	net.Conn
	id         api.NodeID
	stats      *Stats
	session    string      // name of the session, once it is accepted
	superseded atomic.Bool // a newer session of the same name has replaced it
	complained atomic.Bool // a refusal has been logged; further ones are only counted

	place *fairshare.Place // among the broker's connections

	head []byte          // what Read returns first: the CONNECT packet; used by the reader only
	wg   *sync.WaitGroup // the broker's, for drain

	mu      sync.Mutex // guards the fields below
	pending []byte
	writing bool
	closing bool
	err     error
}

// Read returns the CONNECT packet again, then reads the connection.
func (c *conn) Read(p []byte) (n int, err error) {
	if len(c.head) > 0 {
		n = copy(p, c.head)
		c.head = c.head[n:]
	} else {
		n, err = c.Conn.Read(p)
	}
	c.stats.BytesIn.Add(uint64(n))
	return n, err
}

// Write queues p.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.err != nil:
		return 0, c.err
	case c.closing:
		return 0, net.ErrClosed
	case len(c.pending)+len(p) > maxPending:
		c.err = errSlow
		c.pending = nil
		c.stats.Dropped.Add(1)
		c.wg.Go(func() { c.Conn.Close() }) // may block
		return 0, c.err
	}
	c.pending = append(c.pending, p...)
	if !c.writing {
		c.writing = true
		c.wg.Go(c.drain)
	}
	return len(p), nil
}

func (c *conn) drain() {
	for {
		c.mu.Lock()
		batch := c.pending
		c.pending = nil
		if len(batch) == 0 || c.err != nil {
			c.writing = false
			closing := c.closing || c.err != nil
			c.mu.Unlock()
			if closing {
				c.Conn.Close()
			}
			return
		}
		c.mu.Unlock()

		_ = c.Conn.SetWriteDeadline(time.Now().Add(writeTimeout)) // on failure, Write fails too
		n, err := c.Conn.Write(batch)
		c.stats.BytesOut.Add(uint64(n))
		if err != nil {
			c.mu.Lock()
			c.err = err
			c.mu.Unlock()
		}
	}
}

// Close ends reading at once, and closes the connection after the queue is written.
func (c *conn) Close() error {
	c.mu.Lock()
	already, writing := c.closing, c.writing
	c.closing = true
	if !already {
		_ = c.Conn.SetReadDeadline(time.Unix(1, 0))
	}
	c.mu.Unlock()
	if already || writing {
		return nil
	}
	return c.Conn.Close()
}

// SetDeadline enforces the keepalive for mochi-mqtt. It sets the read deadline only: a node that
// keeps sending must not extend the deadline of writes.
func (c *conn) SetDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closing {
		return net.ErrClosed
	}
	return c.Conn.SetReadDeadline(t)
}
