package link

import (
	"io"
	"net"
	"testing"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/netmanager/dataplane/dataplanetest"
)

// A workload with many sockets must not make the netmanager read all of them: the kernel returns only
// the requested states, and reading stops after maxSockets.
func TestReadingOfSocketsIsBounded(t *testing.T) {
	s := dataplanetest.NewSpace(t, "n")
	var all []io.Closer
	open := func(n int, one func() (io.Closer, error)) {
		t.Helper()
		s.Do(func() {
			for range n {
				c, err := one()
				if err != nil {
					t.Error(err)
					return
				}
				all = append(all, c)
			}
		})
	}
	defer func() {
		for _, c := range all {
			_ = c.Close()
		}
	}()
	open(50, func() (io.Closer, error) { return net.Dial("udp4", "127.0.0.1:53") })
	open(3, func() (io.Closer, error) { return net.ListenPacket("udp4", "127.0.0.1:0") })
	sockets, err := SocketsOf(s.Path())
	if err != nil {
		t.Fatal(err)
	}
	defer sockets.Close()
	conn, err := nl.GetNetlinkSocketAt(netns.NsHandle(sockets.ns.Fd()), netns.None(), unix.NETLINK_INET_DIAG)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	told := 0
	free := diagRequest{family: unix.AF_INET, protocol: unix.IPPROTO_UDP, states: 1 << unix.BPF_TCP_CLOSE}
	if whole, err := dump(conn.GetFd(), sockets.buf, free, func([]byte) bool { told++; return true }); err != nil || !whole || told != 3 {
		t.Errorf("told of %d sockets, want the 3 that are connected to nobody: %t, %v", told, whole, err)
	}
	for _, want := range []bool{false, true, true} { // the third call has the same result as the second
		if yes, err := sockets.Listen(); err != nil || yes != want {
			t.Errorf("with %d sockets, all on loopback: it listens: %t, %v", len(all), yes, err)
		}
		if !want {
			open(maxSockets, func() (io.Closer, error) { return net.ListenPacket("udp4", "127.0.0.1:0") })
		}
	}
}
