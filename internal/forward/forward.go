// Package forward carries connections to ports of a workload over one stream: the command line is
// its client, and the node of the workload its server. Streams of yamux give each connection its own
// flow control, so that one that is not read does not block the others.
//
// A connection begins with its target: the protocol (6 or 17, as in IP) and the port (2 bytes). The
// server answers with a zero byte, or with a 1 and the text of an error. Then the bytes of TCP
// follow; UDP datagrams follow their length (2 bytes). A connection of UDP is what one local address
// exchanges with the port; it ends after a minute without datagrams.
package forward

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/hashicorp/yamux"

	"github.com/treeline-edge/treeline/api"
)

const (
	protocolTCP = 6
	protocolUDP = 17

	// window is how much of a connection the receiver buffers: 100 Mbit/s with a round trip of 40 ms.
	window      = 512 << 10
	maxDatagram = 1<<16 - 1
	maxError    = 1 << 10
	// headTimeout is how long the client may take to send the target.
	headTimeout = 10 * time.Second
	udpIdle     = time.Minute
	// writeTimeout is long for slow links; a connection that is not read does not cause it.
	writeTimeout = 2 * time.Minute
)

// Target is a port of a workload.
type Target struct {
	Protocol string // "tcp" or "udp"
	Port     uint16
}

// String returns the target as in "8080/tcp".
func (t Target) String() string { return strconv.Itoa(int(t.Port)) + "/" + t.Protocol }

func config() *yamux.Config {
	c := yamux.DefaultConfig()
	c.MaxStreamWindowSize = window
	c.ConnectionWriteTimeout = writeTimeout
	c.KeepAliveInterval = 15 * time.Second
	c.StreamCloseTimeout = 0 // one direction may outlast the other by any time
	c.AcceptBacklog = 64
	c.LogOutput = io.Discard
	return c
}

// Session is one end of a stream with connections.
type Session struct{ mux *yamux.Session }

// Client returns the end that opens connections.
func Client(conn io.ReadWriteCloser) (*Session, error) {
	s, err := yamux.Client(conn, config())
	return &Session{s}, err
}

// Server returns the end that accepts connections.
func Server(conn io.ReadWriteCloser) (*Session, error) {
	s, err := yamux.Server(conn, config())
	return &Session{s}, err
}

// Close closes the session with its connections and its stream.
func (s *Session) Close() error { return s.mux.Close() }

// Done is closed when the session has ended.
func (s *Session) Done() <-chan struct{} { return s.mux.CloseChan() }

// Open opens a connection. It fails with ErrUnavailable if the server refused it, with the server's
// reason.
func (s *Session) Open(to Target) (*Conn, error) {
	stream, err := s.mux.OpenStream()
	if err != nil {
		return nil, fmt.Errorf("open a connection: %w: %w", err, api.ErrUnavailable)
	}
	head := []byte{protocolTCP, 0, 0}
	if to.Protocol == "udp" {
		head[0] = protocolUDP
	}
	binary.BigEndian.PutUint16(head[1:], to.Port)
	if _, err := stream.Write(head); err != nil {
		_ = stream.Close()
		return nil, fmt.Errorf("open a connection: %w: %w", err, api.ErrUnavailable)
	}
	c := &Conn{stream: stream, udp: to.Protocol == "udp"}
	if err := c.answer(); err != nil {
		_ = stream.Close()
		return nil, err
	}
	return c, nil
}

// answer reads the server's answer.
func (c *Conn) answer() error {
	first := make([]byte, 1)
	if _, err := io.ReadFull(c.stream, first); err != nil {
		return fmt.Errorf("open a connection: %w: %w", err, api.ErrUnavailable)
	}
	if first[0] == 0 {
		return nil
	}
	text, _ := io.ReadAll(io.LimitReader(c.stream, maxError))
	return fmt.Errorf("%s: %w", text, api.ErrUnavailable)
}

// Accept waits for the next connection.
func (s *Session) Accept() (*Conn, error) {
	stream, err := s.mux.AcceptStream()
	if err != nil {
		return nil, err
	}
	return &Conn{stream: stream}, nil
}

// Conn is one connection.
type Conn struct {
	stream *yamux.Stream
	udp    bool
}

// Target returns the port that the client wants. The server calls it once, at first.
func (c *Conn) Target() (Target, error) {
	_ = c.stream.SetReadDeadline(time.Now().Add(headTimeout))
	defer c.stream.SetReadDeadline(time.Time{})
	head := make([]byte, 3)
	if _, err := io.ReadFull(c.stream, head); err != nil {
		return Target{}, fmt.Errorf("read the port: %w: %w", err, api.ErrInvalid)
	}
	t := Target{Protocol: "tcp", Port: binary.BigEndian.Uint16(head[1:])}
	switch head[0] {
	case protocolTCP:
	case protocolUDP:
		t.Protocol, c.udp = "udp", true
	default:
		return t, fmt.Errorf("protocol %d: want TCP (6) or UDP (17): %w", head[0], api.ErrInvalid)
	}
	if t.Port == 0 {
		return t, fmt.Errorf("port 0: want 1 to 65535: %w", api.ErrInvalid)
	}
	return t, nil
}

// Refuse answers with an error and closes the connection.
func (c *Conn) Refuse(why error) {
	defer c.stream.Close()
	_ = c.stream.SetDeadline(time.Now().Add(headTimeout))
	text := why.Error()
	_, _ = c.stream.Write(append([]byte{1}, text[:min(len(text), maxError)]...))
}

// Serve accepts the connection, and copies between it and the target until both directions have
// ended. It closes the target.
func (c *Conn) Serve(target net.Conn) {
	if _, err := c.stream.Write([]byte{0}); err != nil {
		_ = target.Close()
		_ = c.stream.Close()
		return
	}
	c.Copy(target)
}

// Copy copies between the connection and the other one until both directions, or the session, have
// ended, and closes both. The end of one direction of TCP is passed on.
func (c *Conn) Copy(other net.Conn) {
	over := make(chan struct{})
	defer close(over)
	go func() {
		select {
		case <-c.stream.Session().CloseChan():
			_ = other.Close() // interrupts a write that the other side does not read
		case <-over:
		}
	}()
	if c.udp {
		c.copyDatagrams(other)
		return
	}
	defer c.stream.Close()
	defer other.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, err := io.Copy(other, c.stream)
		endWrite(other, err)
	}()
	_, err := io.Copy(c.stream, other)
	_ = c.stream.Close() // yamux: ends this direction only
	if err != nil {
		_ = other.Close()
	}
	<-done
}

// endWrite passes the end of the stream on. A stream that broke must not look complete.
func endWrite(other net.Conn, err error) {
	half, ok := other.(interface{ CloseWrite() error })
	if err != nil || !ok {
		_ = other.Close()
		return
	}
	_ = half.CloseWrite()
}

func (c *Conn) copyDatagrams(other net.Conn) {
	defer c.stream.Close()
	defer other.Close()
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer other.Close()
		buf := make([]byte, maxDatagram)
		for {
			n, err := c.ReadDatagram(buf)
			if err != nil {
				return
			}
			_ = other.SetReadDeadline(time.Now().Add(udpIdle))
			if _, err := other.Write(buf[:n]); err != nil && errors.Is(err, net.ErrClosed) {
				return
			}
		}
	}()
	buf := make([]byte, maxDatagram)
	for {
		_ = other.SetReadDeadline(time.Now().Add(udpIdle))
		n, err := other.Read(buf)
		if err != nil {
			if errors.Is(err, syscall.ECONNREFUSED) {
				continue // an earlier datagram: no process listens yet
			}
			break
		}
		if c.WriteDatagram(buf[:n]) != nil {
			break
		}
	}
	_ = c.stream.Close()
	_ = c.stream.SetReadDeadline(time.Unix(1, 0))
	<-done
}

// ReadDatagram reads a datagram. buf has room for the longest.
func (c *Conn) ReadDatagram(buf []byte) (int, error) {
	var head [2]byte
	if _, err := io.ReadFull(c.stream, head[:]); err != nil {
		return 0, err
	}
	return io.ReadFull(c.stream, buf[:binary.BigEndian.Uint16(head[:])])
}

// WriteDatagram writes a datagram.
func (c *Conn) WriteDatagram(p []byte) error {
	_, err := c.stream.Write(append(binary.BigEndian.AppendUint16(make([]byte, 0, 2+len(p)), uint16(len(p))), p...))
	return err
}

// Close closes the connection.
func (c *Conn) Close() error {
	_ = c.stream.SetReadDeadline(time.Unix(1, 0))
	return c.stream.Close()
}
