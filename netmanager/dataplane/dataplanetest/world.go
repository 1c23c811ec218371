package dataplanetest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Factory returns a plane. It and the plane's methods are called on a thread in the host's
// network namespace, another thread each time.
type Factory func(t testing.TB) dataplane.Plane

const (
	prefix    = "tl"
	hold      = "tlhold"
	tunnel    = "tltun"
	vxlanPort = 4789
)

var ranges = wire.DefaultNetRanges()

// World is two hosts on one link, connected by path (PathDirect: their tunnel devices, whose
// packets the test carries), and an outside host:
//
//	c1 c2 c3 ─ h1 ── 192.168.77.0/24 ── h2 ─ c4 c5 c6
//	            └─ 203.0.113.0/24 ─ outside (198.51.100.1, 2001:db8:100::1)
//
// The ident of a container is its number (c1 is 1), of a service 100 and up.
type World struct {
	t       testing.TB
	path    api.PathKind
	Hosts   [2]*Host
	Outside *Space
}

// Host is a node.
type Host struct {
	*Space
	dataplane.Plane
	Addr, Addr6 netip.Addr // on the link between the hosts
	Key         api.PeerKey
	Subnet      netip.Prefix
	State       plane.State // of the last Sync
	Containers  []*Container
	Queue       *Tun
	Tunnel      *Tun
	factory     Factory
}

// Container is an instance: eth0 is its end of a veth pair.
type Container struct {
	*Space
	Label  string // "c1"
	Host   *Host
	Addr   netip.Addr
	Ident  plane.Ident
	Device string // on the host
	MAC    string // of eth0
	inbox  net.PacketConn
}

// Addr6 returns the container's IPv6 address.
func (c *Container) Addr6() netip.Addr { return ranges.To6(c.Addr) }

var (
	outside4 = netip.MustParseAddr("198.51.100.1")
	outside6 = netip.MustParseAddr("2001:db8:100::1")
	wan4     = netip.MustParseAddr("203.0.113.2") // of the first host
	wan6     = netip.MustParseAddr("2001:db8::2")
)

// NewWorld returns a world whose hosts are peers, and whose containers may all call one another
// and themselves.
func NewWorld(t testing.TB, f Factory, path api.PathKind) *World {
	t.Helper()
	w := &World{t: t, path: path, Outside: NewSpace(t, "out")}
	for i := range w.Hosts {
		w.Hosts[i] = w.newHost(i, f)
	}
	a, b := w.Hosts[0], w.Hosts[1]
	a.IP("link add up0 type veth peer name up0 netns " + b.Name)
	for _, h := range w.Hosts {
		h.IP("addr add "+h.Addr.String()+"/24 dev up0", "addr add "+h.Addr6.String()+"/64 dev up0 nodad",
			"addr add "+via6(h.Addr).String()+"/64 dev up0 nodad", "link set up0 up")
	}
	a.IP("link add wan0 type veth peer name wan0 netns "+w.Outside.Name,
		"addr add 203.0.113.2/24 dev wan0", "addr add 2001:db8::2/64 dev wan0 nodad", "link set wan0 up")
	w.Outside.IP("addr add 203.0.113.1/24 dev wan0", "addr add 2001:db8::1/64 dev wan0 nodad", "link set wan0 up",
		"addr add "+outside4.String()+"/32 dev lo", "addr add "+outside6.String()+"/128 dev lo")
	a.IP("route add default via 203.0.113.1", "route add default via 2001:db8::1")
	b.IP("route add default via "+a.Addr.String(), "route add default via "+a.Addr6.String())
	for i, h := range w.Hosts {
		for n := range 3 {
			h.addContainer(i*3+n+1, n)
		}
		w.join(h, w.Hosts[1-i])
	}
	if path == api.PathDirect {
		go a.Tunnel.pump(b.Tunnel)
		go b.Tunnel.pump(a.Tunnel)
	}
	for i, h := range w.Hosts {
		h.State = w.state(h, w.Hosts[1-i])
		h.start()
		h.MustSync(h.State)
	}
	return w
}

func (w *World) newHost(i int, f Factory) *Host {
	h := &Host{
		Space: NewSpace(w.t, fmt.Sprintf("h%d", i+1)), factory: f,
		Addr:   netip.AddrFrom4([4]byte{192, 168, 77, byte(i + 1)}),
		Addr6:  netip.MustParseAddr(fmt.Sprintf("fd00:77::%d", i+1)),
		Key:    api.PeerKey{byte(i + 1)},
		Subnet: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 16, 1, byte(64 * i)}), 26),
	}
	// Many distributions set this. The greater of this and a device's own value counts.
	h.Sysctl("net/ipv4/conf/all/rp_filter", "1")
	h.Sysctl("net/ipv4/ip_forward", "1")
	h.Sysctl("net/ipv6/conf/all/forwarding", "1")
	h.Queue, h.Tunnel = newTun(h.Space, hold), newTun(h.Space, tunnel)
	h.loosen(hold)
	h.loosen(tunnel)
	h.IP("link set "+hold+" up", "link set "+tunnel+" up mtu 1400",
		"route add "+ranges.Instances.String()+" dev "+hold, "route add "+ranges.Services.String()+" dev "+hold,
		"route add "+ranges.Instances6.String()+" dev "+hold, "route add "+ranges.Services6.String()+" dev "+hold)
	if w.path == api.PathVXLAN {
		name := plane.VXLANDevice(prefix)
		h.IP(fmt.Sprintf("link add %s address %s mtu 1450 type vxlan external dstport %d nolearning", name, vxlanMAC(h.Addr), vxlanPort),
			"link set "+name+" up")
		h.loosen(name)
	}
	return h
}

// loosen makes the device accept packets whose source is routed to another device, as
// netmanager/link does.
func (h *Host) loosen(device string) {
	h.Sysctl("net/ipv4/conf/"+device+"/rp_filter", "2")
	h.IP("addr add " + wire.ResolverAddr.String() + "/32 dev " + device)
}

// addContainer adds container number n as the i-th of its host.
func (h *Host) addContainer(n, i int) {
	b := h.Subnet.Addr().As4()
	b[3] += byte(i + 1)
	c := &Container{
		Label: fmt.Sprintf("c%d", n), Host: h, Addr: netip.AddrFrom4(b), Ident: plane.Ident(n),
		MAC: fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3]),
	}
	c.Space, c.Device = NewSpace(h.t, c.Label), plane.Device(prefix, c.Addr)
	const hostMAC = "02:fe:00:00:00:01"
	h.IP(
		fmt.Sprintf("link add %s address %s type veth peer name eth0 address %s netns %s", c.Device, hostMAC, c.MAC, c.Name),
		"link set "+c.Device+" up",
		fmt.Sprintf("route add %s/32 dev %s", c.Addr, c.Device),
		fmt.Sprintf("route add %s/128 dev %s", c.Addr6(), c.Device),
		fmt.Sprintf("neigh add %s lladdr %s dev %s nud permanent", c.Addr, c.MAC, c.Device),
		fmt.Sprintf("neigh add %s lladdr %s dev %s nud permanent", c.Addr6(), c.MAC, c.Device),
	)
	c.IP("addr add "+c.Addr.String()+"/32 dev eth0", "addr add "+c.Addr6().String()+"/128 dev eth0 nodad", "link set eth0 up",
		fmt.Sprintf("neigh add %s lladdr %s dev eth0 nud permanent", wire.GatewayAddr, hostMAC),
		fmt.Sprintf("neigh add %s lladdr %s dev eth0 nud permanent", wire.GatewayAddr6, hostMAC),
		"route add default via "+wire.GatewayAddr.String()+" dev eth0 onlink",
		"route add default via "+wire.GatewayAddr6.String()+" dev eth0 onlink")
	h.Containers = append(h.Containers, c)
}

// join routes to's subnet from h.
func (w *World) join(h, to *Host) {
	if w.path == api.PathVXLAN {
		h.IP(fmt.Sprintf("neigh add %s lladdr %s dev %s nud permanent", via6(to.Addr), vxlanMAC(to.Addr), plane.VXLANDevice(prefix)))
	}
	h.IP(w.routes(h, to)...)
}

// via6 returns the link-local address for an IPv4 address on an unencrypted network.
func via6(a netip.Addr) netip.Addr {
	b, four := [16]byte{0: 0xfe, 1: 0x80}, a.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

func vxlanMAC(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:54:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

// state returns the initial state of h's plane: no services.
func (w *World) state(h, peer *Host) plane.State {
	s := plane.State{
		Node:  plane.Node{Ranges: ranges, Subnet: h.Subnet, Prefix: prefix, Tunnel: tunnel, Queue: hold},
		Peers: []plane.Peer{{Key: peer.Key, Subnets: []netip.Prefix{peer.Subnet}, Path: w.path}},
	}
	switch w.path {
	case api.PathVXLAN:
		s.Node.VXLAN = vxlanPort
		s.Peers[0].Via, s.Peers[0].Accepts.VXLAN = peer.Addr, true
	case api.PathRoute:
		s.Peers[0].Via, s.Peers[0].Accepts.Route = peer.Addr, true
	}
	for _, c := range h.Containers {
		s.Endpoints = append(s.Endpoints, plane.Endpoint{Address: c.Addr, Ident: c.Ident, Device: c.Device})
	}
	for _, c := range peer.Containers {
		s.Sources = append(s.Sources, plane.Source{Address: c.Addr, Ident: c.Ident})
	}
	for a := plane.Ident(1); a <= 6; a++ {
		for b := plane.Ident(1); b <= 6; b++ {
			s.Allowed = append(s.Allowed, plane.Pair{From: a, To: b})
		}
	}
	return s
}

// start opens a plane on the host, as a start of its netmanager does.
func (h *Host) start() {
	h.Do(func() { h.Plane = h.factory(h.t) })
	h.t.Cleanup(func() { h.Do(func() { _ = h.Plane.Close() }) })
}

// Kill closes the plane and opens another, which the kernel cannot distinguish from a restart.
func (h *Host) Kill() {
	h.Do(func() { _ = h.Plane.Close() })
	h.start()
}

// MustSync syncs the plane to s, and sets h.State.
func (h *Host) MustSync(s plane.State) {
	h.t.Helper()
	h.State = s
	var err error
	h.Do(func() { err = h.Plane.Sync(context.Background(), s) })
	if err != nil {
		h.t.Fatalf("sync: %v", err)
	}
}

// MustApply applies c to the plane.
func (h *Host) MustApply(c plane.Change) {
	h.t.Helper()
	var err error
	h.Do(func() { err = h.Plane.Apply(context.Background(), c) })
	if err != nil {
		h.t.Fatalf("apply: %v", err)
	}
}

// MustUse returns the plane's counters.
func (h *Host) MustUse() plane.Usage {
	h.t.Helper()
	var u plane.Usage
	var err error
	h.Do(func() { u, err = h.Plane.Usage(context.Background()) })
	if err != nil {
		h.t.Fatalf("usage: %v", err)
	}
	return u
}

// C is container number n, from 1 to 6.
func (w *World) C(n int) *Container { return w.Hosts[(n-1)/3].Containers[(n-1)%3] }
