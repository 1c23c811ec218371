package away

import (
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/testbed/lab"
)

// echo is the port of the echo server.
const echo = 7

// serveEcho runs an echo server over TCP and UDP at an instance's address until the test
// ends.
func serveEcho(t *testing.T, in *lab.Inside) {
	t.Helper()
	ln, err := in.Listen(fmt.Sprintf(":%d", echo))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = ln.Close() })
	go func() {
		for c, err := ln.Accept(); err == nil; c, err = ln.Accept() {
			go func() {
				defer c.Close()
				_, _ = io.Copy(c, c)
			}()
		}
	}()
	pc, err := in.ListenPacket(fmt.Sprintf(":%d", echo))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = pc.Close() })
	go func() {
		buf := make([]byte, 64)
		for n, from, err := pc.ReadFrom(buf); err == nil; n, from, err = pc.ReadFrom(buf) {
			_, _ = pc.WriteTo(append(buf[:n:n], in.W.Instance...), from)
		}
	}()
}

// say sends a word over an existing connection, and fails if it is not echoed.
type say func(word string) error

// dialEcho is one connection to the pair's service.
func dialEcho(t *testing.T, p pair, network string) say {
	t.Helper()
	c, err := p.client.Dial(t.Context(), network, p.v4(echo))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if network == "udp" {
		return sayUDP(c)
	}
	return func(word string) error {
		_ = c.SetDeadline(time.Now().Add(patience))
		if _, err := io.WriteString(c, word); err != nil {
			return err
		}
		buf := make([]byte, len(word))
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if string(buf) != word {
			return fmt.Errorf("the echo of %[2]q is %[1]q", buf, word)
		}
		return nil
	}
}

// sayUDP sends a word and waits for its echo; late echoes of earlier words do not count. The
// same instance must answer each time, unless the machine stalled for so long that the flow
// expired.
func sayUDP(c net.Conn) say {
	var from string
	var last time.Time
	return func(word string) error {
		if time.Since(last) > patience {
			from = ""
		}
		_ = c.SetDeadline(time.Now().Add(patience / 6))
		if _, err := io.WriteString(c, word); err != nil {
			return err
		}
		buf := make([]byte, 256)
		for {
			n, err := c.Read(buf)
			if err != nil {
				return err
			}
			if by, ok := strings.CutPrefix(string(buf[:n]), word); ok {
				was := from
				if from, last = by, time.Now(); was != "" && was != by {
					return fmt.Errorf("%s answered, want %s", by, was)
				}
				return nil
			}
		}
	}
}

// anew makes each request on a new connection.
func anew(in *lab.Inside, at string) say {
	return func(string) error {
		_, err := in.Who(at, patience)
		return err
	}
}

// talk makes requests continuously and counts the losses.
type talk struct {
	name string
	stop chan struct{}
	done sync.WaitGroup

	said int // read when done
	lost []loss
}

// loss is a request without an answer.
type loss struct {
	at  time.Time
	err error
}

func (l loss) String() string {
	return fmt.Sprintf("what was said at %s: %v", l.at.Format("15:04:05.000"), l.err)
}

func begin(t *testing.T, name string, every time.Duration, s say) *talk {
	k := &talk{name: name, stop: make(chan struct{})}
	k.done.Go(func() {
		for len(k.lost) < 20 { // after that many losses it stays broken
			began := time.Now()
			err := s(fmt.Sprintf("word %06d", k.said))
			k.said++
			if err != nil {
				k.lost = append(k.lost, loss{began, err})
			}
			select {
			case <-k.stop:
				return
			case <-time.After(every):
			}
		}
	})
	t.Cleanup(func() { _, _ = k.end() })
	return k
}

// end ends the talk and returns the number of requests and the losses.
func (k *talk) end() (int, []loss) {
	select {
	case <-k.stop:
	default:
		close(k.stop)
	}
	k.done.Wait()
	return k.said, k.lost
}
