package wiring

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// A machine that changes its network reports its new address to the cluster, which informs the peers,
// and the tunnel continues within three seconds. If both ends move at once, only the cluster can connect
// them again.
func TestChangedAddressHeals(t *testing.T) {
	const (
		healed = 3 * time.Second // the promised time
		watch  = 5 * time.Second
	)
	for _, plane := range []string{"nft", "ebpf"} {
		t.Run(plane, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, 2, "--plane", plane)
			sw := w.tag + "-sw"
			for _, gateway := range []string{"192.0.2.254/24", "198.51.100.254/24"} {
				w.sh("ip", "-n", sw, "address", "add", gateway, "dev", "br0")
			}
			w.sh("ip", "netns", "exec", sw, "sysctl", "-qw", "net.ipv4.ip_forward=1", "net.ipv4.conf.all.send_redirects=0", "net.ipv4.conf.br0.send_redirects=0")
			near, far := w.hosts[0], w.hosts[1]
			w.sh("ip", "-n", near.ns, "route", "add", "default", "via", "192.0.2.254")
			far.move()
			client, server := near.run("client", 0, 1), far.run("server", 0, 2)
			server.serve(80)
			server.echo(80)
			var flows []*flow
			for _, to := range []netip.Addr{vip(2), wire.DefaultNetRanges().To6(vip(2))} {
				flows = append(flows, client.flow("udp", to, api.PathDirect))
			}
			for _, r := range []struct {
				name  string
				hosts []*testHost
			}{
				{"who is called moves", []*testHost{far}},
				{"the caller moves", []*testHost{near}},
				{"both move", []*testHost{near, far}},
			} {
				bestOf(t, 3, func() (failed []string) {
					near.reaches(far, api.PathDirect)
					far.reaches(near, api.PathDirect)
					began := time.Now()
					w.sh("ip", "-n", sw, "link", "set", "br0", "down") // disconnect all for a moment
					for _, h := range r.hosts {
						h.move()
					}
					w.sh("ip", "-n", sw, "link", "set", "br0", "up")
					time.Sleep(watch)
					end := time.Now()
					for _, f := range flows {
						wait := f.gap(began, end)
						t.Logf("%s: %s waits %v", r.name, f, wait.Round(time.Millisecond))
						if wait > healed {
							failed = append(failed, fmt.Sprintf("%s: %s waits %v, more than %v", r.name, f, wait, healed))
						}
					}
					return failed
				})
			}
			for _, f := range flows {
				f.end()
			}
		})
	}
}

// move moves the host to the other one of two networks, with a new address, without notice to any
// daemon.
func (h *testHost) move() {
	h.w.t.Helper()
	was := h.addr.As4()
	to, gateway := [4]byte{192, 0, 2, was[3] + 2}, "192.0.2.254"
	if was[0] == to[0] {
		to, gateway = [4]byte{198, 51, 100, to[3]}, "198.51.100.254"
	}
	h.w.sh("ip", "-n", h.ns, "address", "del", h.addr.String()+"/24", "dev", "eth0")
	h.addr = netip.AddrFrom4(to)
	h.w.sh("ip", "-n", h.ns, "address", "add", h.addr.String()+"/24", "dev", "eth0")
	h.w.sh("ip", "-n", h.ns, "route", "replace", "default", "via", gateway)
}
