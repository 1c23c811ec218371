package forward_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/forward"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// sessions returns both ends of a session. The server connects each connection with serve.
func sessions(t *testing.T, serve func(forward.Target) (net.Conn, error)) *forward.Session {
	t.Helper()
	a, b := net.Pipe()
	server, err := forward.Server(b)
	if err != nil {
		t.Fatal(err)
	}
	client, err := forward.Client(a)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close(); server.Close() })
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			go func() {
				to, err := c.Target()
				if err != nil {
					c.Refuse(err)
					return
				}
				conn, err := serve(to)
				if err != nil {
					c.Refuse(err)
					return
				}
				c.Serve(conn)
			}()
		}
	}()
	return client
}

// tcp returns both ends of a TCP connection.
func tcp(t *testing.T) (near, far *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close(); f.Close() })
	return n.(*net.TCPConn), f.(*net.TCPConn)
}

// TestHalfClose sends a request, ends that direction, and then reads the answer, which depends on the
// whole request.
func TestHalfClose(t *testing.T) {
	workload, node := tcp(t)
	s := sessions(t, func(to forward.Target) (net.Conn, error) {
		if to.String() != "8080/tcp" {
			t.Errorf("target %s, want 8080/tcp", to)
		}
		return node, nil
	})
	go func() {
		sum := sha256.New()
		_, _ = io.Copy(sum, workload)
		_, _ = workload.Write(sum.Sum(nil))
		_ = workload.Close()
	}()
	c, err := s.Open(forward.Target{Protocol: "tcp", Port: 8080})
	if err != nil {
		t.Fatal(err)
	}
	user, near := tcp(t)
	copied := make(chan struct{})
	go func() { c.Copy(near); close(copied) }()
	text := make([]byte, 1<<20)
	_, _ = rand.Read(text)
	if _, err := user.Write(text); err != nil {
		t.Fatal(err)
	}
	_ = user.CloseWrite()
	got, err := io.ReadAll(user)
	if want := sha256.Sum256(text); err != nil || !bytes.Equal(got, want[:]) {
		t.Errorf("answer %x, %v, want %x", got, err, want)
	}
	<-copied
}

// TestAConnectionThatIsNotReadBlocksNoOther also shows how much of it is buffered.
func TestAConnectionThatIsNotReadBlocksNoOther(t *testing.T) {
	s := sessions(t, func(to forward.Target) (net.Conn, error) {
		a, b := net.Pipe()
		go func() {
			defer b.Close()
			if to.Port == 1 {
				return // never: the pipe is not read
			}
			_, _ = io.Copy(b, b)
		}()
		if to.Port == 1 {
			a, _ = net.Pipe()
		}
		return a, nil
	})
	stuck, err := s.Open(forward.Target{Protocol: "tcp", Port: 1})
	if err != nil {
		t.Fatal(err)
	}
	source, far := net.Pipe()
	go stuck.Copy(far)
	sent := 0
	block := make([]byte, 32<<10)
	for {
		_ = source.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		n, err := source.Write(block)
		sent += n
		if err != nil {
			break
		}
	}
	if sent > 1<<20 {
		t.Errorf("%d bytes were accepted for a connection that is not read, want at most a window", sent)
	}
	echo, err := s.Open(forward.Target{Protocol: "tcp", Port: 2})
	if err != nil {
		t.Fatal(err)
	}
	user, near := net.Pipe()
	go echo.Copy(near)
	go io.WriteString(user, "hello")
	buf := make([]byte, 5)
	_ = user.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := io.ReadFull(user, buf); err != nil || string(buf) != "hello" {
		t.Errorf("beside a connection that is not read, echo answers %q, %v", buf, err)
	}
	_, _ = source.Close(), user.Close()
}

func TestDatagramsKeepTheirBorders(t *testing.T) {
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(append([]byte("got "), buf[:n]...), from)
		}
	}()
	s := sessions(t, func(to forward.Target) (net.Conn, error) {
		if to.Protocol != "udp" {
			t.Errorf("protocol %s, want udp", to.Protocol)
		}
		return net.Dial("udp", server.LocalAddr().String())
	})
	c, err := s.Open(forward.Target{Protocol: "udp", Port: 53})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	buf := make([]byte, 1<<16)
	for _, text := range []string{"a", "", strings.Repeat("b", 60_000)} {
		if err := c.WriteDatagram([]byte(text)); err != nil {
			t.Fatal(err)
		}
		if n, err := c.ReadDatagram(buf); err != nil || string(buf[:n]) != "got "+text {
			t.Errorf("answer of %d bytes, %v, want %d", n, err, len(text)+4)
		}
	}
}

func TestRefusalsHaveTheirReason(t *testing.T) {
	s := sessions(t, func(to forward.Target) (net.Conn, error) {
		return nil, fmt.Errorf("port %s: no process listens: %s", to, strings.Repeat("x", 5000))
	})
	_, err := s.Open(forward.Target{Protocol: "tcp", Port: 9})
	if !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "port 9/tcp: no process listens") || len(err.Error()) > 2000 {
		t.Errorf("got %.100v, want the reason, bounded, and ErrUnavailable", err)
	}
	if _, err := s.Open(forward.Target{Protocol: "tcp"}); err == nil || !strings.Contains(err.Error(), "port 0") {
		t.Errorf("port 0: got %v, want it refused", err)
	}
}
