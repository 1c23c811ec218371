package dataplanetest

import (
	"errors"
	"net"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// hostsAreClosed calls the hosts and their networks from instances.
func hostsAreClosed(_ *testing.T, w *World) {
	here, there, c := w.Hosts[0], w.Hosts[1], w.C(1)
	here.Serve("h1", 8081)
	there.Serve("h2", 8081)
	w.Outside.Serve("out", 8081)
	neighbour := netip.MustParseAddr("203.0.113.1") // the outside host, on the host's network
	for network, a := range calls(here.Addr, here.Addr6, there.Addr, there.Addr6, neighbour, wan4, netip.MustParseAddr("2001:db8::1")) {
		c.Unreached(network, at(a, 8081))
	}
	here.IP("addr add fe80::77/64 dev " + c.Device + " nodad")
	c.IP("addr add fe80::78/64 dev eth0 nodad")
	for network, a := range calls(c.zoned("fe80::77%eth0")) {
		c.Unreached(network, at(a, 8081))
	}
	// A network in a routing table of its own, as management VPNs have.
	w.Outside.IP("addr add 100.64.0.9/32 dev lo", "addr add 2001:db8:64::9/128 dev wan0 nodad")
	here.IP("rule add to 100.64.0.0/24 lookup 52", "route add 100.64.0.0/24 dev wan0 table 52")
	here.Output("ip", "-6", "rule", "add", "to", "2001:db8:64::/64", "lookup", "52")
	here.IP("route add 2001:db8:64::/64 dev wan0 table 52")
	here.MustSync(here.State)
	closed := []netip.Addr{netip.MustParseAddr("100.64.0.9"), netip.MustParseAddr("2001:db8:64::9")}
	for _, p := range dataplane.Closed {
		if p.IsSingleIP() { // clouds' metadata services, behind a router
			w.Outside.IP("addr add " + p.String() + " dev lo")
			closed = append(closed, p.Addr())
		}
	}
	for _, a := range closed {
		here.MustAsk("tcp", at(a, 8081))
		c.Unreached("tcp", at(a, 8081))
	}
	n := here.State.Node
	n.Open = []netip.Prefix{netip.PrefixFrom(neighbour, 32), netip.MustParsePrefix("2001:db8::1/128")}
	n.Closed = []netip.Prefix{netip.PrefixFrom(outside4, 24).Masked(), netip.PrefixFrom(outside6, 64).Masked()}
	for network, a := range calls(outside4, outside6) {
		c.MustAsk(network, at(a, 8081)) // by masquerading: there is no other way back
	}
	here.MustApply(plane.Change{Node: &n})
	for network, a := range calls(outside4, outside6) {
		c.Unreached(network, at(a, 8081))
	}
	for network, a := range calls(n.Open[0].Addr(), n.Open[1].Addr()) {
		c.MustAsk(network, at(a, 8081))
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

// resolverIsReachable checks that instances reach the resolver and nothing else of the host.
// While it is down, a query gets no error, so that the client repeats it.
func resolverIsReachable(t *testing.T, w *World) {
	resolver := at(wire.ResolverAddr, 53)
	early, err := w.C(1).Dial("udp", resolver, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer early.Close()
	for range 2 { // an error of the first query would be returned by the second
		if _, err := early.Write([]byte("early")); err != nil {
			t.Errorf("query without a resolver: got %v, want no error", err)
		}
		if _, err := w.C(1).Ask("tcp", resolver); !errors.Is(err, unix.ECONNREFUSED) { // the connection came later
			t.Errorf("connect without a resolver: got %v, want connection refused", err)
		}
	}
	w.Hosts[0].Serve("h1", 53)
	_ = early.SetDeadline(time.Now().Add(patience))
	if got, err := askUDP(early, "again"); err != nil || got != "h1" {
		t.Errorf("repeat the query: got answer %q and error %v, want h1", got, err)
	}
	w.Hosts[0].Serve("h1", 8081)
	for network, a := range calls(wire.ResolverAddr) {
		w.C(1).Reaches("h1", network, resolver)
		w.C(1).Unreached(network, at(a, 8081))
	}
}

// publishedEndpoint returns the first container with a published port.
func (w *World) publishedEndpoint(host, instance uint16) plane.Endpoint {
	return plane.Endpoint{Address: w.C(1).Addr, Ident: 1, Device: w.C(1).Device, Ports: []api.PortMap{
		{Host: host, Instance: instance, Protocol: "tcp"}, {Host: host, Instance: instance, Protocol: "udp"},
	}}
}

func portsArePublished(_ *testing.T, w *World) {
	w.serveAll()
	h := w.Hosts[0]
	e := w.publishedEndpoint(8080, 80)
	h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{e}})
	for from, to := range map[*Space][]netip.Addr{
		w.Outside:        {wan4, wan6},
		h.Space:          {h.Addr, h.Addr6, wan4, wan6},
		w.Hosts[1].Space: {h.Addr, h.Addr6},
	} {
		for network, a := range calls(to...) {
			from.Reaches("c1", network, at(a, 8080))
		}
	}
	// The instance's address and its other ports are not reachable from outside.
	w.Outside.IP("route add " + ranges.Instances.String() + " via " + wan4.String())
	w.Outside.Unreached("tcp", at(w.C(1).Addr, 80))
	e.Ports = nil
	h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{e}})
	w.Outside.Unreached("tcp", at(wan4, 8080))
}

// publishedPortsDoNotHideLocalServers publishes the ports of the host's name server. The host's
// loopback and the instances' resolver keep them.
func publishedPortsDoNotHideLocalServers(_ *testing.T, w *World) {
	h := w.Hosts[0]
	h.Serve("host", 53)
	w.C(1).Serve("tenant", 80)
	h.Sysctl("net/ipv4/conf/"+w.C(1).Device+"/route_localnet", "1") // as package link sets it where ports are published
	h.IP("addr add fe80::77/64 dev wan0 nodad")
	w.Outside.IP("addr add fe80::1/64 dev wan0 nodad")
	h.MustApply(plane.Change{SetEndpoints: []plane.Endpoint{w.publishedEndpoint(53, 80)}})
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
		{w.Outside, wan4, "tenant"},
		{w.Outside, wan6, "tenant"},
	} {
		for network, a := range calls(x.to) {
			x.from.Reaches(x.want, network, at(a, 53))
		}
	}
}
