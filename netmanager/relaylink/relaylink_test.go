package relaylink

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync/atomic"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/leaktest"
	"github.com/treeline-edge/treeline/internal/relaywire"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fake is a relay. It answers bindings over UDP unless deaf is set, and accepts one TCP
// connection at a time on the same port.
type fake struct {
	udp    *net.UDPConn
	tcp    net.Listener
	deaf   atomic.Bool
	secret []byte
	conns  chan net.Conn
}

func newFake(t *testing.T) *fake {
	t.Helper()
	for {
		tcp, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		udp, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(tcp.Addr().(*net.TCPAddr).AddrPort()))
		if err != nil { // the port is taken
			_ = tcp.Close()
			continue
		}
		f := &fake{udp: udp, tcp: tcp, secret: []byte("s"), conns: make(chan net.Conn, 1)}
		t.Cleanup(func() { _ = udp.Close(); _ = tcp.Close() })
		go f.answer()
		go func() {
			for {
				c, err := tcp.Accept()
				if err != nil {
					return
				}
				f.conns <- c
			}
		}()
		return f
	}
}

func (f *fake) answer() {
	buf := make([]byte, 2048)
	for {
		n, from, err := f.udp.ReadFromUDPAddrPort(buf)
		if err != nil {
			return
		}
		req, err := relaywire.ParseRequest(buf[:n])
		if err != nil || f.deaf.Load() || !relaywire.Authentic(buf[:n], f.secret) {
			continue
		}
		ans := relaywire.Answer{Slot: req.Slot, Seq: req.Seq, Last: req.Seq, Addr: from}
		if req.Bind {
			ans.Result = relaywire.Bound
		}
		_, _ = f.udp.WriteToUDPAddrPort(ans.Append(nil, f.secret), from)
	}
}

// socket is a Tunnel that has only a UDP socket.
type socket struct {
	conn   *net.UDPConn
	states chan State
	got    chan string
}

func (s socket) Send(to netip.AddrPort, b []byte) error {
	_, err := s.conn.WriteToUDPAddrPort(b, to)
	return err
}
func (s socket) Deliver(_ netip.AddrPort, b []byte) { s.got <- string(b) }
func (s socket) Changed(now State)                  { s.states <- now }

// node runs a link with a socket, until the test ends.
func node(t *testing.T, f *fake) (l *Link, states chan State, got chan string) {
	t.Helper()
	conn, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	states, got = make(chan State, 100), make(chan string, 100)
	l = New(Options{
		Dial: func(ctx context.Context, addr string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", f.tcp.Addr().String())
		},
		Resolve: func(context.Context, string) ([]netip.Addr, error) {
			return []netip.Addr{netip.MustParseAddr("127.0.0.1")}, nil
		},
	})
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil {
				l.Receive(from, buf[:n])
			}
		}
	}()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- l.Run(ctx, socket{conn, states, got}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		_ = conn.Close()
	})
	_, port, _ := net.SplitHostPort(f.tcp.Addr().String())
	if err := l.SetLease(ctx, api.Relay{Addr: net.JoinHostPort("relay.example", port), Slot: 7}, f.secret); err != nil {
		t.Fatal(err)
	}
	return l, states, got
}

func until(t *testing.T, states chan State, what string, ok func(State) bool) State {
	t.Helper()
	for {
		select {
		case s := <-states:
			if ok(s) {
				return s
			}
		case <-time.After(time.Minute):
			t.Fatalf("after a minute the link has not reached the state %q", what)
		}
	}
}

func TestBindsOverUDP(t *testing.T) {
	f := newFake(t)
	_, states, _ := node(t, f)
	s := until(t, states, "bound", func(s State) bool { return s.UDP })
	if s.TLS || !s.Mapped.IsValid() || len(s.Relays) != 1 {
		t.Errorf("bound state %+v, want UDP alone, with a mapped address and one relay", s)
	}
}

func TestKeepsTLSWhileUDPIsBlocked(t *testing.T) {
	f := newFake(t)
	f.deaf.Store(true)
	l, states, got := node(t, f)
	s := until(t, states, "over TLS", func(s State) bool { return s.TLS })
	if s.UDP {
		t.Errorf("state %+v while the relay is deaf to UDP, want TLS alone", s)
	}
	c := <-f.conns
	defer c.Close()
	if msg, err := relaywire.ReadMessage(c, nil); err != nil || len(msg) != 0 {
		t.Fatalf("first message over TLS %q, %v, want an empty keep-alive", msg, err)
	}
	if !l.SendTLS(s.Relays[0], 8, 9, []byte("up")) || !l.SendTLS(netip.MustParseAddrPort("198.51.100.3:7000"), 1, 2, []byte("out")) {
		t.Fatal("SendTLS refused a datagram while the connection is up")
	}
	msg, err := relaywire.ReadMessage(c, nil)
	if h, rest, ok := relaywire.ParseFrame(msg); err != nil || !ok || h != (relaywire.Header{Slot: 8, Ticket: 9}) || string(rest) != "up" {
		t.Errorf("message %q, %v, want a frame to slot 8 with \"up\"", msg, err)
	}
	msg, err = relaywire.ReadMessage(c, nil)
	if to, frame, ok := relaywire.ParseTo(msg); err != nil || !ok || to.Addr() != netip.MustParseAddr("198.51.100.3") || len(frame) != relaywire.HeaderLen+3 {
		t.Errorf("message %q, %v, want a frame to the relay at 198.51.100.3", msg, err)
	}
	if _, err := c.Write(relaywire.AppendMessage(nil, []byte("down"))); err != nil {
		t.Fatal(err)
	}
	if m := <-got; m != "down" {
		t.Errorf("delivered %q, want \"down\"", m)
	}
	// UDP works again.
	f.deaf.Store(false)
	l.Nudge()
	until(t, states, "back on UDP", func(s State) bool { return s.UDP && !s.TLS })
	if l.SendTLS(s.Relays[0], 8, 9, []byte("gone")) {
		t.Error("SendTLS accepted a datagram after UDP came back, want it refused")
	}
}

func TestBadAddressIsRefused(t *testing.T) {
	if err := New(Options{}).SetLease(t.Context(), api.Relay{Addr: "nowhere"}, nil); !errors.Is(err, api.ErrInvalid) {
		t.Errorf("lease of a relay without a port: %v, want ErrInvalid", err)
	}
}
