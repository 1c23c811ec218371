package membership

import (
	"errors"
	"fmt"
	"log"
	"net"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/treeline-edge/treeline/internal/fairshare"
)

// maxStream is how many bytes one connection may send. The state of a replica takes some kilobytes. The library
// would buffer 20 MB before it finds that a stranger does not have the key.
const maxStream = 256 << 10

var streams = fairshare.Bound{
	Per: "subnet, then address", Beyond: "the oldest of the largest subnet is closed; each may send 256 KiB in 10 s", Attack: "TestStrangersNeitherReadNorJoin",
}.Declare("connections to the gossip port of replicas", 64)

// transport is the library's transport with bounds for TCP connections, of which anybody may open many.
type transport struct {
	*memberlist.NetTransport
	pool    *fairshare.Pool
	streams chan net.Conn
	done    chan struct{}
	work    sync.WaitGroup
}

// listen listens over UDP and TCP. An IP that is nil stands for all addresses.
func listen(at *net.TCPAddr, log *log.Logger) (*transport, error) {
	host := ""
	if at.IP != nil {
		host = at.IP.String()
	}
	inner, err := memberlist.NewNetTransport(&memberlist.NetTransportConfig{BindAddrs: []string{host}, BindPort: at.Port, Logger: log})
	if err != nil {
		return nil, fmt.Errorf("gossip among replicas: %w", err)
	}
	t := &transport{NetTransport: inner, pool: fairshare.NewPool(streams, fairshare.Replace), streams: make(chan net.Conn), done: make(chan struct{})}
	t.work.Go(t.accept)
	return t, nil
}

// StreamCh implements memberlist.Transport.
func (t *transport) StreamCh() <-chan net.Conn { return t.streams }

func (t *transport) accept() {
	for {
		var c net.Conn
		select {
		case c = <-t.NetTransport.StreamCh():
		case <-t.done:
			return
		}
		s := &stream{Conn: c, left: maxStream}
		place, err := t.pool.Take(time.Now(), fairshare.RemoteOf(c.RemoteAddr()), func() { _ = c.Close() })
		if err != nil {
			_ = c.Close()
			continue
		}
		s.place = place
		select {
		case t.streams <- s:
		case <-t.done:
			_ = s.Close()
			return
		}
	}
}

// Shutdown implements memberlist.Transport.
func (t *transport) Shutdown() error {
	err := t.NetTransport.Shutdown() // accept must still take what it has accepted
	close(t.done)
	t.work.Wait()
	return err
}

var errTooMuch = errors.New("gossip among replicas: the other one sends too much")

// stream is a connection that returns an error after maxStream bytes. One goroutine reads it.
type stream struct {
	net.Conn
	left  int
	place *fairshare.Place
}

// Read implements net.Conn.
func (s *stream) Read(b []byte) (int, error) {
	if s.left <= 0 {
		return 0, errTooMuch
	}
	n, err := s.Conn.Read(b[:min(len(b), s.left)])
	s.left -= n
	return n, err
}

// Close implements net.Conn.
func (s *stream) Close() error {
	s.place.Release()
	return s.Conn.Close()
}
