package udp

import (
	"bytes"
	"errors"
	"net"
	"net/netip"
	"testing"
)

func open(t *testing.T, at string) *Conn {
	t.Helper()
	c, err := Listen(netip.MustParseAddrPort(at))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// read receives until it has the given number of bytes, and returns the datagrams.
func read(t *testing.T, r *Receiver, bytes int) (all [][]byte, from netip.AddrPort) {
	t.Helper()
	for bytes > 0 {
		n, err := r.Receive()
		if err != nil {
			t.Fatal(err)
		}
		for i := range n {
			m := r.Message(i)
			from = m.From
			for d := m.Data; len(d) > 0; d = d[min(m.Each, len(d)):] {
				all = append(all, append([]byte(nil), d[:min(m.Each, len(d))]...))
			}
			bytes -= len(m.Data)
		}
	}
	return all, from
}

func TestRunsArriveAsDatagrams(t *testing.T) {
	for _, at := range []string{"127.0.0.1:0", "[::]:0"} {
		a, b := open(t, at), open(t, at)
		to := b.Local()
		if to.Addr().IsUnspecified() {
			to = netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), to.Port())
		}
		run := bytes.Repeat([]byte("0123456789"), 105) // 1050 bytes: ten datagrams and a half
		if err := a.NewSender().Send(to, run, 100); err != nil {
			t.Fatal(err)
		}
		all, from := read(t, b.NewReceiver(), len(run))
		if len(all) != 11 || !bytes.Equal(bytes.Join(all, nil), run) || len(all[10]) != 50 {
			t.Errorf("%s: %d datagrams came", at, len(all))
		}
		if from.Port() != a.Local().Port() || !from.Addr().Is4() {
			t.Errorf("%s: from %v, not %v", at, from, a.Local())
		}
	}
}

func TestCloseEndsAReceive(t *testing.T) {
	c := open(t, "127.0.0.1:0")
	done := make(chan error, 1)
	go func() {
		_, err := c.NewReceiver().Receive()
		done <- err
	}()
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-done; !errors.Is(err, net.ErrClosed) {
		t.Errorf("%v", err)
	}
}
