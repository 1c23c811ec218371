package link

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
)

func TestConnectionsAreMeasuredByTheKernel(t *testing.T) {
	s := dataplanetest.NewSpace(t, "k")
	s.Output("ip", "link", "set", "lo", "up")
	talk := func(network, at string) {
		t.Helper()
		var ln net.Listener
		var err error
		s.Do(func() { ln, err = net.Listen(network, at) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { ln.Close() })
		var conn net.Conn
		s.Do(func() { conn, err = net.Dial("tcp", ln.Addr().String()) })
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { conn.Close() })
		other, err := ln.Accept()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { other.Close() })
		for _, c := range [][2]net.Conn{{conn, other}, {other, conn}} {
			if _, err := c[0].Write([]byte("hello")); err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(c[1], make([]byte, 5)); err != nil {
				t.Fatal(err)
			}
		}
	}
	talk("tcp4", "127.0.0.1:0")
	talk("tcp6", "[::1]:0")
	c := NewConnections()
	look := func(most int) (all []Connection) {
		t.Helper()
		if err := c.Each(s.Path(), most, func(x Connection) { all = append(all, x) }); err != nil {
			t.Fatal(err)
		}
		return all
	}
	all := look(100)
	if len(all) != 4 {
		t.Fatalf("%d ends of 2 connections: %+v", len(all), all)
	}
	for i, x := range all {
		want := netip.MustParseAddr([]string{"127.0.0.1", "::1"}[i/2])
		if x.Local != want || x.Remote != want || x.Least <= 0 || x.RTT < x.Least || x.RTT > time.Minute || x.Sent == 0 || x.Retransmitted > x.Sent || x.Idle > time.Hour {
			t.Errorf("unexpected measurement of a loopback connection: %+v", x)
		}
	}
	for _, most := range []int{1, 2, 3} {
		if n := len(look(most)); n != most {
			t.Errorf("%d, at most %d", n, most)
		}
	}
	if err := c.Each(s.Path()+"-gone", 1, nil); !errors.Is(err, api.ErrGone) {
		t.Errorf("a namespace that is gone: %v", err)
	}
}

func FuzzConnections(f *testing.F) {
	message := func(kind uint16, body []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.SizeofNlMsghdr+len(body)))
		b = binary.NativeEndian.AppendUint16(b, kind)
		return append(append(b, make([]byte, 10)...), body...)
	}
	one := append(make([]byte, diagMessageLen), 0xec, 0, diagInfo, 0)
	one = append(one, make([]byte, 232)...)
	one[0] = unix.AF_INET
	binary.NativeEndian.PutUint32(one[diagMessageLen+4+68:], 150)
	binary.NativeEndian.PutUint32(one[diagMessageLen+4+148:], 100)
	if x, ok := connection(one); !ok || x.RTT != 150*time.Microsecond || x.Least != 100*time.Microsecond {
		f.Fatalf("%+v, %t", x, ok)
	}
	f.Add(append(message(unix.SOCK_DIAG_BY_FAMILY, one), message(unix.NLMSG_DONE, make([]byte, 4))...))
	f.Add(message(unix.NLMSG_ERROR, []byte{0xfe, 0xff, 0xff, 0xff}))
	f.Add(message(unix.NLMSG_ERROR, nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		n := 0
		_, _ = messages(b, func(b []byte) bool {
			if x, ok := connection(b); ok && (x.RTT <= 0 || x.Least <= 0) {
				t.Errorf("a measurement without round trips was accepted: %+v", x)
			}
			_ = listens(b)
			n++
			return n < 3
		})
		if n > 3 {
			t.Errorf("%d, after enough", n)
		}
	})
}
