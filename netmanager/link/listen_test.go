package link_test

import (
	"errors"
	"net"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
	"github.com/treeline-edge/treeline/netmanager/link"
)

func TestListeningSocketsAreSeen(t *testing.T) {
	s := dataplanetest.NewSpace(t, "l")
	s.Output("ip", "link", "set", "lo", "up")
	sockets, err := link.SocketsOf(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	listens := func() bool {
		t.Helper()
		yes, err := sockets.Listen()
		if err != nil {
			t.Fatal(err)
		}
		return yes
	}
	type closer interface{ Close() error }
	tcp := func(network, at string) func() (closer, error) {
		return func() (closer, error) { return net.Listen(network, at) }
	}
	udp := func(network, at string) func() (closer, error) {
		return func() (closer, error) { return net.ListenPacket(network, at) }
	}
	for _, c := range []struct {
		name string
		open func() (closer, error)
		want bool
	}{
		{"nobody", func() (closer, error) { return nopCloser{}, nil }, false},
		{"TCP on loopback", tcp("tcp4", "127.0.0.1:0"), false},
		{"TCP on IPv6's loopback", tcp("tcp6", "[::1]:0"), false},
		{"TCP", tcp("tcp4", "0.0.0.0:0"), true},
		{"TCP over IPv6", tcp("tcp6", "[::]:0"), true},
		{"UDP on loopback", udp("udp4", "127.0.0.1:0"), false},
		{"UDP", udp("udp4", "0.0.0.0:0"), true},
		{"UDP over IPv6", udp("udp6", "[::]:0"), true},
		// A client, such as a resolver, does not listen.
		{"connected UDP", func() (closer, error) { return net.Dial("udp4", "127.0.0.1:53") }, false},
	} {
		var sock closer
		s.Do(func() { sock, err = c.open() })
		if err != nil {
			t.Fatalf("listen with %s: %v", c.name, err)
		}
		if got := listens(); got != c.want {
			t.Errorf("%s: it listens: %v", c.name, got)
		}
		_ = sock.Close()
	}
	if _, err := link.SocketsOf(s.Path() + "-gone"); !errors.Is(err, api.ErrGone) {
		t.Errorf("a namespace that is gone: %v", err)
	}
}

type nopCloser struct{}

func (nopCloser) Close() error { return nil }
