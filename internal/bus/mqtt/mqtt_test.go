package mqtt

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/internal/bus"
	"github.com/treeline-edge/treeline/internal/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"no client id":        {Addr: "localhost:1"},
		"no address":          {ClientID: "n1"},
		"a broken keepalive":  {ClientID: "n1", Addr: "localhost:1", KeepAlive: time.Millisecond},
		"a negative interval": {ClientID: "n1", Addr: "localhost:1", KeepAlive: -time.Second},
	} {
		if c, err := Dial(o); err == nil {
			c.Close()
			t.Errorf("%s was accepted", name)
		}
	}
}

// dialled makes a client whose connections come from dial.
func dialled(t *testing.T, dial func(context.Context) (net.Conn, error)) *Client {
	t.Helper()
	c, err := Dial(Options{
		ClientID: "n1", Dialer: dial, MinBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond,
		ConnectTimeout: 50 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func TestUnreachableBrokerIsTriedAgainAndCloseEndsIt(t *testing.T) {
	tried := make(chan struct{})
	c := dialled(t, func(context.Context) (net.Conn, error) {
		tried <- struct{}{}
		return nil, errors.New("no route")
	})
	for range 5 {
		<-tried
	}
	if err := c.Publish(t.Context(), bus.Message{Topic: "x"}); !errors.Is(err, bus.ErrDown) {
		t.Errorf("got %v", err)
	}
	go func() {
		for range tried { // a further attempt may have begun
		}
	}()
	c.Close()
	close(tried)
}

// peer is a broker that answers CONNECT with connack and then sends nothing.
func peer(t *testing.T, connack ...byte) (dial func(context.Context) (net.Conn, error), dials chan net.Conn) {
	dials = make(chan net.Conn, 64)
	return func(context.Context) (net.Conn, error) {
		near, far := net.Pipe()
		t.Cleanup(func() { far.Close() })
		go func() {
			buf := make([]byte, 256)
			if _, err := far.Read(buf); err == nil {
				_, _ = far.Write(connack)
			}
			for {
				if _, err := far.Read(buf); err != nil {
					return
				}
			}
		}()
		select {
		case dials <- near:
		default:
		}
		return near, nil
	}, dials
}

func TestRefusedConnectIsNeverUp(t *testing.T) {
	for _, code := range []byte{1, 2, 5, 0x82} { // Paho treats the last one as success
		dial, dials := peer(t, 0x20, 2, 0, code)
		c := dialled(t, dial)
		up := c.Up()
		for range 3 {
			<-dials
		}
		if <-up {
			t.Errorf("code %#x was taken for a success", code)
		}
		c.Close()
		if <-up {
			t.Errorf("code %#x was taken for a success", code)
		}
	}
}

func TestASilentBrokerIsAbandoned(t *testing.T) {
	dial, dials := peer(t) // writes nothing
	c := dialled(t, dial)
	for range 3 {
		<-dials
	}
	c.Close()
}

func TestAClosedConnectionIsDetected(t *testing.T) {
	dial, dials := peer(t, 0x20, 2, 0, 0)
	c := dialled(t, dial)
	up := c.Up()
	for !<-up {
	}
	(<-dials).Close()
	<-dials // the next
}

// The process was paused, and another one has its role: it must not end the other one's connection, which
// has the same client id, and not publish over the connection that it had.
func TestAFencedClientNeitherPublishesNorConnects(t *testing.T) {
	var fenced atomic.Bool
	sent := make(chan byte, 64) // the first byte of each write to the broker
	dials := make(chan net.Conn, 64)
	c, err := Dial(Options{
		ClientID: "n1", MinBackoff: time.Millisecond, MaxBackoff: 4 * time.Millisecond, Log: slog.New(slog.DiscardHandler), Fenced: fenced.Load,
		Dialer: func(context.Context) (net.Conn, error) {
			near, far := net.Pipe()
			t.Cleanup(func() { far.Close() })
			go func() {
				buf := make([]byte, 256)
				for {
					if _, err := far.Read(buf); err != nil {
						return
					}
					sent <- buf[0] >> 4
					if buf[0]>>4 == 1 { // CONNECT
						_, _ = far.Write([]byte{0x20, 2, 0, 0})
					}
				}
			}()
			select {
			case dials <- near:
			default:
			}
			return near, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for up := c.Up(); !<-up; {
	}
	<-sent
	fenced.Store(true)
	if err := c.Publish(t.Context(), bus.Message{Topic: "x"}); !errors.Is(err, bus.ErrDown) {
		t.Errorf("publish while fenced: %v, want ErrDown", err)
	}
	(<-dials).Close()
	for range 3 {
		<-dials
	}
	select {
	case packet := <-sent:
		t.Errorf("a fenced client sent a packet of type %d, want none", packet)
	default:
	}
}

func TestUnacknowledgedPublishEndsWithItsContextAndIsBounded(t *testing.T) {
	dial, _ := peer(t, 0x20, 2, 0, 0)
	c := dialled(t, dial)
	for up := c.Up(); !<-up; {
	}
	for range maxInFlight + 5 {
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
		err := c.Publish(ctx, bus.Message{Topic: "x", QoS: 1, Payload: []byte("x")})
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
	}
	c.mu.Lock()
	n := len(c.session.slots)
	c.mu.Unlock()
	if n > maxInFlight {
		t.Errorf("%d publishes are held", n)
	}
}

// TestEndpointsAreTriedInTurn: a broker has moved, and the client has both addresses.
func TestEndpointsAreTriedInTurn(t *testing.T) {
	listen := func() net.Listener {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		return ln
	}
	first, second := listen(), listen()
	heard := make(chan string, 64)
	for name, ln := range map[string]net.Listener{"first": first, "second": second} {
		go func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				c.Close()
				heard <- name
			}
		}()
	}
	c, err := Dial(Options{
		ClientID: "n1", MinBackoff: time.Millisecond, MaxBackoff: 2 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Endpoints: func() []Endpoint { return []Endpoint{{Addr: first.Addr().String()}, {Addr: second.Addr().String()}} },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for i, want := range []string{"first", "second", "first", "second"} {
		if got := <-heard; got != want {
			t.Fatalf("attempt %d went to the %s endpoint, want the %s", i, got, want)
		}
	}
}

// With several endpoints, the first attempts are short, so that one that is gone does not keep the client from the others.
func TestAttemptsAreShortAtFirstIfThereAreOtherEndpoints(t *testing.T) {
	for n, want := range map[int][]time.Duration{
		1: {15 * time.Second, 15 * time.Second},
		2: {time.Second, time.Second, 2 * time.Second, 2 * time.Second, 4 * time.Second, 4 * time.Second, 8 * time.Second, 8 * time.Second, 15 * time.Second, 15 * time.Second},
	} {
		o := Options{ClientID: "n1", Endpoints: func() []Endpoint { return make([]Endpoint, n) }}
		if err := o.complete(); err != nil {
			t.Fatal(err)
		}
		for attempt, want := range want {
			if got := o.connectTimeout(attempt); got != want {
				t.Errorf("attempt %d of %d endpoints takes at most %s, want %s", attempt, n, got, want)
			}
		}
		if got := o.connectTimeout(1 << 40); got != o.ConnectTimeout {
			t.Errorf("a late attempt takes at most %s, want %s", got, o.ConnectTimeout)
		}
	}
}
