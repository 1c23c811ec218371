package dataplanetest

import (
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// deniedFlowsAreDropped denies flows where packets leave, and where they arrive from a node
// that allows them.
func deniedFlowsAreDropped(t *testing.T, w *World) {
	w.serveAll()
	here, there := w.Hosts[0], w.Hosts[1]
	here.publish(w.service(1, 4), w.service(2, 2))
	open := []*Flow{w.C(1).Open("tcp", at(w.C(4).Addr, 80)), w.C(1).Open("udp", at(ranges.To6(vip(2)), 80))}
	kept := []*Flow{w.C(2).Open("tcp", at(w.C(4).Addr, 80)), w.C(1).Open("tcp", at(w.C(5).Addr, 80)), w.C(4).Open("tcp", at(w.C(1).Addr, 80))}
	type denial struct {
		at   *Host
		pair plane.Pair
		to   netip.Addr
	}
	for _, d := range []denial{
		{here, plane.Pair{From: 1, To: 4}, w.C(4).Addr},  // leaves
		{there, plane.Pair{From: 1, To: 4}, w.C(4).Addr}, // arrives
		{here, plane.Pair{From: 1, To: 2}, w.C(2).Addr},  // both on one node
		{here, plane.Pair{From: 1, To: 101}, vip(1)},     // a service
		{here, plane.Pair{From: 1, To: 2}, vip(2)},       // its backend, where it arrives
	} {
		before := d.at.MustUse().Denied
		d.at.MustApply(plane.Change{Deny: []plane.Pair{d.pair}})
		for network, a := range calls(both(d.to)...) {
			w.C(1).Unreached(network, at(a, 80))
		}
		if after := d.at.MustUse().Denied; after <= before {
			t.Errorf("packets dropped after %v was denied: got %d, want some", d.pair, after-before)
		}
		if d.pair.To == 4 && d.at == here { // open flows end too
			if open[0].echo(quiet) == nil {
				t.Errorf("%s goes on after %v was denied", open[0], d.pair)
			}
		}
		checkEcho(t, "whose pair is allowed", kept...)
		d.at.MustApply(plane.Change{Allow: []plane.Pair{d.pair}})
		for _, a := range both(d.to) {
			w.C(1).MustAsk("tcp", at(a, 80))
		}
	}
}

// first runs f and returns the first datagram on port 9 of c. The socket stays open until the
// test ends: a process that another test forks holds all descriptors until its exec, and would
// keep a closed port in use.
func (c *Container) first(t *testing.T, f func()) string {
	t.Helper()
	if c.inbox == nil {
		c.inbox = c.listen("udp", ":9")
	}
	f()
	_ = c.inbox.SetDeadline(time.Now().Add(patience))
	b := make([]byte, 1500)
	n, _, err := c.inbox.ReadFrom(b)
	if err != nil {
		t.Fatal(err)
	}
	return string(b[:n])
}

// forgedSourcesAreDropped sends from others' addresses. A later datagram with the sender's own
// address arrives first.
func forgedSourcesAreDropped(t *testing.T, w *World) {
	here, there := w.Hosts[0], w.Hosts[1]
	for six := range 2 {
		addr := func(c *Container) netip.Addr { return both(c.Addr)[six] }
		of := func(s string) netip.Addr { return both(netip.MustParseAddr(s))[six] }
		forge := func(s *Space, src netip.Addr, to *Container) {
			s.Inject(udp(at(src, 1000), at(addr(to), 9), "forged"))
			w.C(4).Inject(udp(at(addr(w.C(4)), 1000), at(addr(to), 9), "own"))
		}
		forgeries := map[string]func(){
			"container with its neighbour's address": func() { forge(w.C(1).Space, addr(w.C(2)), w.C(3)) },
			"container with an address of a peer":    func() { forge(w.C(1).Space, addr(w.C(5)), w.C(3)) },
			"container with an unused address":       func() { forge(w.C(1).Space, of("10.17.0.1"), w.C(3)) },
			"container with a service's address":     func() { forge(w.C(1).Space, both(vip(1))[six], w.C(3)) },
			"peer with an address of this node":      func() { forge(there.Space, addr(w.C(1)), w.C(3)) },
			"peer with another peer's address":       func() { forge(there.Space, of("10.17.0.1"), w.C(3)) },
			"peer with a service's address":          func() { forge(there.Space, both(vip(1))[six], w.C(3)) },
		}
		if w.path == api.PathDirect { // only the tunnel knows the peer; to the plane the source is unknown
			delete(forgeries, "peer with another peer's address")
		}
		for name, f := range forgeries {
			before := here.MustUse().Forged
			if got := w.C(3).first(t, f); got != "own" {
				t.Errorf("%s, IPv6 %d: the %s packet arrived first, want own", name, six, got)
			}
			if after := here.MustUse().Forged; after == before {
				t.Errorf("%s, IPv6 %d: the forged packet was not counted", name, six)
			}
		}
	}
	// A forged segment must not end another's flow.
	f := w.C(2).Open("tcp", at(w.serve(4), 80))
	local := f.LocalAddr().(*net.TCPAddr).Port
	rst := make([]byte, 20)
	rst[0], rst[1], rst[3], rst[12], rst[13] = byte(local>>8), byte(local), 80, 5<<4, 4
	w.C(1).Inject(packet(unix.IPPROTO_TCP, w.C(2).Addr, w.C(4).Addr, rst))
	if err := f.Echo(); err != nil {
		t.Error(err)
	}
}

// allAcceptedPathsAreAccepted changes the paths by which packets from a peer are accepted, for each
// path by which packets are sent to it.
func allAcceptedPathsAreAccepted(t *testing.T, w *World) {
	if w.path == api.PathDirect {
		return // packets from the tunnel are always accepted
	}
	here, there := w.Hosts[0], w.Hosts[1]
	// Strict reverse-path filtering drops packets from a device other than the one to their source.
	here.Sysctl("net/ipv4/conf/up0/rp_filter", "2")
	by := map[api.PathKind]func(){}
	for _, path := range []api.PathKind{api.PathRoute, w.path} { // VXLAN's hosts are on one link too
		by[path] = func() {
			other := *w
			other.path = path
			for _, line := range other.routes(there, here) {
				there.IP(strings.Replace(line, "route add", "route replace", 1))
			}
		}
	}
	for _, ours := range []api.PathKind{api.PathDirect, w.path} {
		for _, takes := range []plane.Paths{{}, {Route: true}, {VXLAN: true}, {Route: true, VXLAN: true}, {Route: true}} {
			if takes.VXLAN && w.path != api.PathVXLAN {
				continue
			}
			p := here.State.Peers[0]
			p.Path, p.Accepts = ours, takes
			here.MustApply(plane.Change{SetPeers: []plane.Peer{p}})
			for path, come := range by {
				come()
				taken := path == api.PathRoute && takes.Route || path == api.PathVXLAN && takes.VXLAN
				for six := range 2 {
					to, own := at(both(w.C(3).Addr)[six], 9), at(both(w.C(4).Addr)[six], 1000)
					send := func() { there.Inject(udp(own, to, "by "+string(path))) }
					if taken {
						if got := w.C(3).first(t, send); got != "by "+string(path) {
							t.Errorf("path %s, accepted %+v, IPv6 %d: got packet %q, want the one by %s", ours, takes, six, got, path)
						}
						continue
					}
					before := here.MustUse().Forged
					send()
					waitFor(t, fmt.Sprintf("path %s, accepted %+v, IPv6 %d: drop a packet by %s", ours, takes, six, path),
						func() bool { return here.MustUse().Forged > before })
				}
			}
		}
	}
}

// packetsByAnotherPathAreDropped sends packets by another path than their peer's.
func packetsByAnotherPathAreDropped(t *testing.T, w *World) {
	here, there := w.Hosts[0], w.Hosts[1]
	// Strict reverse-path filtering would drop them before the plane counts them.
	here.Sysctl("net/ipv4/conf/wan0/rp_filter", "2")
	third := plane.Peer{Key: api.PeerKey{3}, Subnets: []netip.Prefix{netip.MustParsePrefix("10.16.2.0/26")}, Path: w.path}
	if w.path != api.PathDirect {
		third.Via, third.Accepts = netip.MustParseAddr("192.168.77.3"), here.State.Peers[0].Accepts
	}
	stranger := netip.MustParseAddr("10.16.2.1")
	here.MustApply(plane.Change{SetPeers: []plane.Peer{third}, SetSources: []plane.Source{{Address: stranger, Ident: 4}}})
	for six := range 2 {
		to, own := at(both(w.C(3).Addr)[six], 9), at(both(w.C(4).Addr)[six], 1000)
		// The tunnel authenticates the peer, whatever the peer's path is now.
		if got := w.C(3).first(t, func() {
			if err := here.Tunnel.Write(udp(own, to, "tunnel")); err != nil {
				t.Fatal(err)
			}
		}); got != "tunnel" {
			t.Errorf("IPv6 %d: the %s packet arrived, want tunnel", six, got)
		}
		forgeries := map[string]func(){
			"tunnel with an address of this node": func() {
				if err := here.Tunnel.Write(udp(at(both(w.C(1).Addr)[six], 1000), to, "forged")); err != nil {
					t.Fatal(err)
				}
			},
		}
		if w.path == api.PathVXLAN { // plain routes cannot distinguish two peers on one link
			forgeries["peer with another peer's address"] = func() { there.Inject(udp(at(both(stranger)[six], 1000), to, "forged")) }
		}
		if w.path != api.PathVXLAN {
			forgeries["peer by another device"] = func() {
				w.Outside.IP("route replace " + netip.PrefixFrom(to.Addr(), to.Addr().BitLen()).String() + []string{" via 203.0.113.2", " via 2001:db8::2"}[six])
				w.Outside.Inject(udp(own, to, "forged"))
			}
		}
		for name, f := range forgeries {
			before := here.MustUse().Forged
			f()
			waitFor(t, fmt.Sprintf("%s, IPv6 %d: drop the packet", name, six), func() bool { return here.MustUse().Forged > before })
			if got := w.C(3).first(t, func() { w.C(4).Inject(udp(own, to, "own")) }); got != "own" {
				t.Errorf("%s, IPv6 %d: the %s packet arrived, want own", name, six, got)
			}
		}
	}
}
