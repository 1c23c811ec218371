package wiring

import (
	"bytes"
	"io"
	"net/netip"
	"syscall"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/netsock"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestServiceAddressLeadsToAnotherHost(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 2, "--plane", plane)
			client := w.hosts[0].run("client", 0, 1)
			server := w.hosts[1].run("server", 0, 2)
			server.serve(80)
			if got, want := client.ask(vip(2), 80), string(server.key.Instance); got != want {
				t.Errorf("%s answers at the service address, want %s", got, want)
			}
			// A link whose MTU is below that of IPv6 packets within the tunnel.
			for _, h := range w.hosts {
				w.sh("ip", "-n", h.ns, "link", "set", "eth0", "mtu", "1300")
			}
			for _, to := range []netip.Addr{vip(2), wire.DefaultNetRanges().To6(vip(2))} {
				client.backAndForth(to, 80, 300_000)
			}
		})
	}
}

// backAndForth sends n bytes to a container that serves, and reads them back.
func (c *container) backAndForth(to netip.Addr, port, n int) {
	t := c.host.w.t
	t.Helper()
	conn, err := c.dial(to, port)
	if err != nil {
		t.Errorf("%s to %s: %v", c.key, to, err)
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(testTime))
	go func() { _, _ = conn.Write(bytes.Repeat([]byte("0123456789"), n/10)) }()
	if got, err := io.CopyN(io.Discard, conn, int64(n)); err != nil { // its name comes first
		t.Errorf("%s to %s: %d of %d bytes came back: %v", c.key, to, got, n, err)
	}
}

// In an unencrypted network packets stay in the kernel when both ends have detected that there is no
// NAT between them.
func TestUnencryptedTrafficStaysInTheKernel(t *testing.T) {
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			w := newWorld(t, 2, "--plane", plane)
			w.unencrypted(w.hosts...)
			client, server := w.hosts[0].run("client", 0, 1), w.hosts[1].run("server", 0, 2)
			server.serve(80)
			kernel := func(h *testHost) bool { // what the host sends takes the kernel path
				peers := view[api.Page[api.PeerStatus]](h, netsock.Peers).Items
				return len(peers) == 1 && peers[0].Path == api.PathRoute
			}
			for end := time.Now().Add(testTime); !kernel(w.hosts[0]) || !kernel(w.hosts[1]); time.Sleep(50 * time.Millisecond) {
				if got := client.ask(vip(2), 80); got != string(server.key.Instance) {
					t.Fatalf("%s answers at the service address, want %s", got, server.key.Instance)
				}
				if time.Now().After(end) {
					t.Fatalf("the kernel's path is not in use after %v", testTime)
				}
			}
			observed(t, client, server)
			w.hosts[0].end(syscall.SIGTERM)
			w.hosts[1].end(syscall.SIGTERM)
			if got := client.ask(vip(2), 80); got != string(server.key.Instance) {
				t.Errorf("without netmanagers %s answers, want %s", got, server.key.Instance)
			}
		})
	}
}
