package resolver

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/miekg/dns"
	"golang.org/x/sys/unix"
)

// Over UDP the client repeats the query; over TCP it would wait.
func TestOverTCPTooManyQuestionsAreAnswered(t *testing.T) {
	_, at := serve(t, Config{Overlay: newFakeOverlay(), Rate: 1})
	failed := 0
	for range 5 {
		c := dns.Client{Net: "tcp", Timeout: 20 * time.Second}
		m, _, err := c.Exchange(new(dns.Msg).SetQuestion("web.treeline.", dns.TypeA), at)
		if err != nil {
			t.Fatal(err)
		}
		if m.Rcode == dns.RcodeServerFailure {
			failed++
		}
	}
	if failed == 0 {
		t.Error("no query was refused, want one beyond the bound")
	}
}

// While it is unknown whether an address is the overlay's, its name is not forwarded, and the
// query fails.
func TestAnUndecidedAddressIsNotForwarded(t *testing.T) {
	b := newFakeOverlay()
	b.stuck = true
	_, at := serve(t, Config{Overlay: b, Servers: []netip.AddrPort{upstream(t, 1, "192.0.2.1")}, Wait: 10 * time.Millisecond})
	if m := ask(t, "udp", at, "9.0.30.10.in-addr.arpa.", dns.TypePTR); m.Rcode != dns.RcodeServerFailure {
		t.Errorf("PTR query of an undecided address: %s, want SERVFAIL", dns.RcodeToString[m.Rcode])
	}
	if m := ask(t, "udp", at, "example.org.", dns.TypeA); m.Rcode != dns.RcodeSuccess {
		t.Errorf("query of a name outside: %s, want NOERROR", dns.RcodeToString[m.Rcode])
	}
}

// outOfFiles is a listener of a process that is out of file descriptors for a while.
type outOfFiles struct {
	net.Listener
	left, asked int // how often it fails, and how often it was called
}

func (n *outOfFiles) Accept() (net.Conn, error) {
	if n.asked++; n.asked > n.left {
		return nil, net.ErrClosed
	}
	return nil, &net.OpError{Op: "accept", Net: "tcp", Err: os.NewSyscallError("accept4", unix.EMFILE)}
}
func (*outOfFiles) Close() error { return nil }

func TestWithoutFileDescriptorsAcceptPauses(t *testing.T) {
	g := newGate(New(Config{Overlay: newFakeOverlay()}).cfg)
	n := &outOfFiles{left: 3}
	began := time.Now()
	if _, err := g.listener(n).Accept(); !errors.Is(err, net.ErrClosed) || n.asked != 4 {
		t.Errorf("Accept called the listener %d times: %v, want 4 and ErrClosed", n.asked, err)
	}
	if took := time.Since(began); took < (1+2+4)*minPause {
		t.Errorf("Accept took %s, want three growing pauses", took)
	}
	n = &outOfFiles{left: 1 << 30}
	ln := g.listener(n)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		<-ctx.Done()
		ln.Close()
	}()
	done := make(chan error)
	go func() { _, err := ln.Accept(); done <- err }()
	cancel()
	if err := <-done; !errors.Is(err, unix.EMFILE) {
		t.Errorf("Accept after Close in a pause: %v, want EMFILE", err)
	}
}

// The connections of an instance are bounded, and instances that hold all of them lose some to
// others.
func TestDNSConnectionsOfOneInstanceAreBounded(t *testing.T) {
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := newGate(New(Config{Overlay: newFakeOverlay()}).cfg)
	g.local = func(netip.Addr) bool { return true }
	l := g.listener(tcp).(*listener)
	accepted := make(chan struct{})
	go func() {
		defer close(accepted)
		var all []net.Conn
		for {
			c, err := l.Accept()
			if err != nil {
				break
			}
			all = append(all, c)
			_, _ = c.Write([]byte{1}) // it was accepted
		}
		for _, c := range all {
			c.Close()
		}
	}()
	var all []net.Conn
	defer func() {
		for _, c := range all {
			c.Close()
		}
		l.Close()
		<-accepted
	}()
	// open makes connections of a client; the last of them was accepted or closed.
	open := func(client byte, n int) {
		d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 1, client)}}
		for range n {
			c, err := d.Dial("tcp", tcp.Addr().String())
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, c)
		}
	}
	held := func(client byte) int { return l.room.Held(netip.AddrFrom4([4]byte{127, 0, 1, client}).String()) }
	// accepts reports whether the newest connection was accepted, and therefore all earlier ones.
	accepts := func() bool {
		c := all[len(all)-1]
		_ = c.SetReadDeadline(time.Now().Add(30 * time.Second))
		_, err := c.Read(make([]byte, 1))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("a connection is neither accepted nor closed, want one of both")
		}
		return err == nil
	}
	open(1, 20)
	if ok, n := accepts(), held(1); ok || n != 8 {
		t.Errorf("one instance has %d connections, want 8; its twentieth is accepted: %v, want false", n, ok)
	}
	for client := byte(2); client < 60; client++ {
		open(client, 8)
	}
	open(100, 1)
	if !accepts() || held(100) != 1 {
		t.Error("beside 59 instances that hold all connections another gets none, want one")
	}
	if n := l.room.Size(); n > 256 {
		t.Errorf("%d connections are open, want at most 256", n)
	}
}
