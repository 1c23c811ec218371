package dataplanetest

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// hostsAreClosed has instances try to reach the hosts and their networks.
func hostsAreClosed(t *testing.T, w *World) {
	here, there := w.Hosts[0], w.Hosts[1]
	here.Serve("h1", 8081)
	there.Serve("h2", 8081)
	w.Outside.Serve("out", 8081)
	neighbour := netip.MustParseAddr("203.0.113.1") // the outside host, on the host's network
	for _, a := range []netip.Addr{here.Addr, here.Addr6, there.Addr, there.Addr6, neighbour, netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("2001:db8::1")} {
		for _, network := range []string{"tcp", "udp"} {
			if err := w.C(1).Unreached(network, at(a, 8081)); err != nil {
				t.Error(err)
			}
		}
	}
	// By link-local addresses.
	here.IP("addr add fe80::77/64 dev " + w.C(1).Device + " nodad")
	w.C(1).IP("addr add fe80::78/64 dev eth0 nodad")
	for _, network := range []string{"tcp", "udp"} {
		if err := w.C(1).Unreached(network, at(w.C(1).zoned("fe80::77%eth0"), 8081)); err != nil {
			t.Error(err)
		}
	}
	// A network in a routing table of its own, as management VPNs have.
	w.Outside.IP("addr add 100.64.0.9/32 dev lo", "addr add 2001:db8:64::9/128 dev wan0 nodad")
	here.IP("rule add to 100.64.0.0/24 lookup 52", "route add 100.64.0.0/24 dev wan0 table 52")
	here.Output("ip", "-6", "rule", "add", "to", "2001:db8:64::/64", "lookup", "52")
	here.IP("route add 2001:db8:64::/64 dev wan0 table 52")
	here.MustSync(here.State)
	for _, a := range []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("2001:db8:64::9")} {
		must(t)(here.Ask("tcp", at(a, 8081)))
		if err := w.C(1).Unreached("tcp", at(a, 8081)); err != nil {
			t.Error(err)
		}
	}
	// Clouds' metadata services, behind a router.
	for _, p := range dataplane.Closed {
		if a := p.Addr(); p.IsSingleIP() {
			w.Outside.IP("addr add " + p.String() + " dev lo")
			must(t)(here.Ask("tcp", at(a, 8081)))
			if err := w.C(1).Unreached("tcp", at(a, 8081)); err != nil {
				t.Error(err)
			}
		}
	}
	n := here.State.Node
	n.Open = []netip.Prefix{netip.PrefixFrom(neighbour, 32), netip.MustParsePrefix("2001:db8::1/128")}
	n.Closed = []netip.Prefix{netip.PrefixFrom(outside4, 24).Masked(), netip.PrefixFrom(outside6, 64).Masked()}
	for _, a := range []netip.Addr{outside4, outside6} {
		for _, network := range []string{"tcp", "udp"} {
			must(t)(w.C(1).Ask(network, at(a, 8081))) // by masquerading: there is no other way back
		}
	}
	here.MustApply(plane.Change{Node: &n})
	for _, network := range []string{"tcp", "udp"} {
		for _, a := range []netip.Addr{outside4, outside6} {
			if err := w.C(1).Unreached(network, at(a, 8081)); err != nil {
				t.Error(err)
			}
		}
		for _, p := range n.Open {
			must(t)(w.C(1).Ask(network, at(p.Addr(), 8081)))
		}
	}
}

// zoned returns a link-local address with the device's index as its zone: other threads cannot
// resolve a device name of this namespace.
func (s *Space) zoned(text string) (a netip.Addr) {
	a = netip.MustParseAddr(text)
	s.Do(func() {
		d, err := net.InterfaceByName(a.Zone())
		if err != nil {
			panic(err)
		}
		a = a.WithZone(strconv.Itoa(d.Index))
	})
	return a
}

// theResolverIsReached checks that instances reach the resolver and nothing else of the host.
// While it is down, a query gets no error, so that the client repeats it.
func theResolverIsReached(t *testing.T, w *World) {
	early, err := w.C(1).Dial("udp", at(wire.ResolverAddr, 53), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	for range 2 { // an error of the first query would be returned by the second
		if _, err := early.Write([]byte("early")); err != nil {
			t.Errorf("who asks while nobody serves: %v", err)
		}
		if _, err := w.C(1).Ask("tcp", at(wire.ResolverAddr, 53)); !errors.Is(err, unix.ECONNREFUSED) { // the connection came later
			t.Errorf("who connects while nobody serves: %v", err)
		}
	}
	w.Hosts[0].Serve("h1", 53)
	if got := must(t)(askOn(early, "again")); got != "h1" {
		t.Errorf("%s answered who asked again", got)
	}
	w.Hosts[0].Serve("h1", 8081)
	for _, network := range []string{"tcp", "udp"} {
		if got := must(t)(w.C(1).Ask(network, at(wire.ResolverAddr, 53))); got != "h1" {
			t.Errorf("%s answered", got)
		}
		if err := w.C(1).Unreached(network, at(wire.ResolverAddr, 8081)); err != nil {
			t.Error(err)
		}
	}
}

// portsArePublished calls an instance by its node's address.
func portsArePublished(t *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	e := plane.Endpoint{Address: w.C(1).Addr, Ident: 1, Device: w.C(1).Device, Ports: []api.PortMap{
		{Host: 8080, Instance: 80, Protocol: "tcp"}, {Host: 8080, Instance: 80, Protocol: "udp"},
	}}
	h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{e}})
	wan := []netip.Addr{netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("2001:db8::2")}
	for from, to := range map[*Space][]netip.Addr{
		w.Outside:        wan,
		h.Space:          {h.Addr, h.Addr6, wan[0], wan[1]},
		w.Hosts[1].Space: {h.Addr, h.Addr6},
	} {
		for _, a := range to {
			for _, network := range []string{"tcp", "udp"} {
				if got, err := from.Ask(network, at(a, 8080)); err != nil || got != "c1" {
					t.Errorf("%s asked %s %s: %q, %v", from.Name, network, a, got, err)
				}
			}
		}
	}
	// The instance's address and its other ports are not reachable from outside.
	w.Outside.IP("route add " + ranges.Instances.String() + " via 203.0.113.2")
	if err := w.Outside.Unreached("tcp", at(w.C(1).Addr, 80)); err != nil {
		t.Error(err)
	}
	e.Ports = nil
	h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{e}})
	if err := w.Outside.Unreached("tcp", at(wan[0], 8080)); err != nil {
		t.Error(err)
	}
}

// publishedPortsLeaveTheHostsOwn publishes the ports of the host's name server. The host's
// loopback and the instances' resolver keep them.
func publishedPortsLeaveTheHostsOwn(t *testing.T, w *World) {
	h := w.Hosts[0]
	h.Serve("host", 53)
	w.C(1).Serve("tenant", 80)
	h.Sysctl("net/ipv4/conf/"+w.C(1).Device+"/route_localnet", "1") // as package link sets it where ports are published
	h.IP("addr add fe80::77/64 dev wan0 nodad")
	w.Outside.IP("addr add fe80::1/64 dev wan0 nodad")
	e := plane.Endpoint{Address: w.C(1).Addr, Ident: 1, Device: w.C(1).Device, Ports: []api.PortMap{
		{Host: 53, Instance: 80, Protocol: "tcp"}, {Host: 53, Instance: 80, Protocol: "udp"},
	}}
	h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{e}})
	for _, network := range []string{"tcp", "udp"} {
		for _, x := range []struct {
			from *Space
			to   netip.Addr
			want string
		}{
			{w.C(2).Space, wire.ResolverAddr, "host"},
			{w.C(1).Space, wire.ResolverAddr, "host"},
			{h.Space, wire.ResolverAddr, "host"},
			{h.Space, netip.MustParseAddr("127.0.0.53"), "host"},
			{h.Space, netip.IPv6Loopback(), "host"},
			{h.Space, h.zoned("fe80::77%wan0"), "host"},
			{w.Outside, w.Outside.zoned("fe80::77%wan0"), "host"},
			// The published port.
			{h.Space, netip.MustParseAddr("127.0.0.1"), "tenant"},
			{w.Outside, netip.MustParseAddr("203.0.113.2"), "tenant"},
			{w.Outside, netip.MustParseAddr("2001:db8::2"), "tenant"},
		} {
			if got, err := x.from.Ask(network, at(x.to, 53)); err != nil || got != x.want {
				t.Errorf("%s asked %s %s: %q, %v, want %s", x.from.Name, network, x.to, got, err, x.want)
			}
		}
	}
}
