package netbench

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/tunnel"
)

func init() { roles["plane"] = as(syncPlane) }

// Parts is Treeline's path, put together of its parts without their daemon: on
// each node a data plane of that name, which chooses the backend of a semantic
// address and rewrites, and below it plain routes, VXLAN, or the tunnel, direct or
// through a relay, for which the bed's nodes are Apart. Without a plane's name containers are reached by their own addresses.
func Parts(plane string, kind api.PathKind) *PartsPath {
	return &PartsPath{plane: plane, kind: kind}
}

// PartsPath is the Path of Parts. Of a plane nothing runs: it goes on without who
// made it.
type PartsPath struct {
	plain
	plane string
	kind  api.PathKind
	bed   *Bed
	state [2]plane.State
}

// What all paths through a data plane have in common.
const (
	prefix    = "tl"
	vxlanPort = 4789
	hostMAC   = "02:fe:00:00:00:01"
)

var (
	ranges  = api.DefaultNetRanges()
	subnets = [2]netip.Prefix{netip.MustParsePrefix("10.16.0.0/26"), netip.MustParsePrefix("10.16.0.64/26")}
	nodeKey = [2]api.PeerKey{{1}, {2}}
	one     = netip.MustParseAddr("10.30.0.1") // semantic address of one replica
	all     = netip.MustParseAddr("10.30.0.2") // of all
)

// Services by their idents.
const (
	identCaller plane.Ident = 1 + iota
	identOne
	identAll
	identMore // and on
)

// Target is Path's.
func (k *PartsPath) Target(replicas int) netip.Addr {
	if k.plane == "" {
		return k.state[1].Endpoints[0].Address
	}
	if replicas == 1 {
		return one
	}
	return all
}

// Up is Path's.
func (k *PartsPath) Up(ctx context.Context, b *Bed) error {
	k.bed = b
	mtu := wireMTU
	if k.kind != api.PathRoute {
		mtu = tunnel.DefaultMTU
	}
	for i, n := range b.Node {
		s := &k.state[i]
		s.Node = plane.Node{Ranges: ranges, Subnet: subnets[i], Prefix: prefix, Tunnel: prefix + "tun", Hold: prefix + "hold"}
		s.Peers = []plane.Peer{{Key: nodeKey[1-i], Subnets: []netip.Prefix{subnets[1-i]}, Path: k.kind, Via: WireAddr[1-i]}}
		if err := n.IP(ctx, "tuntap add dev "+s.Node.Hold+" mode tun", "link set "+s.Node.Hold+" up",
			fmt.Sprintf("route add %s dev %s", ranges.Instances, s.Node.Hold), fmt.Sprintf("route add %s dev %s", ranges.Services, s.Node.Hold)); err != nil {
			return err
		}
	}
	if err := k.join(ctx); err != nil {
		return err
	}
	// The second node's first container is the one replica, all others are those of
	// the other service.
	for i, c := range [][]*Namespace{{b.Container[0]}, append([]*Namespace{b.Container[1]}, b.More...)} {
		a := subnets[i].Addr()
		for j, n := range c {
			ident := identCaller
			switch {
			case i == 1 && j == 0:
				ident = identOne
			case i == 1:
				ident = identAll
			}
			a = a.Next()
			if err := k.attach(ctx, i, n, a, ident, mtu); err != nil {
				return err
			}
		}
	}
	for i := range k.state {
		s := &k.state[i]
		s.Services = []plane.Service{{Address: one, Ident: identOne}, {Address: all, Ident: identAll}}
		for _, e := range k.state[1].Endpoints {
			v := &s.Services[e.Ident-identOne]
			v.Backends = append(v.Backends, plane.Backend{Address: e.Address, Weight: 1})
		}
		for _, e := range k.state[1-i].Endpoints {
			s.Sources = append(s.Sources, plane.Source{Address: e.Address, Ident: e.Ident})
		}
		s.Allowed = []plane.Pair{{From: identCaller, To: identOne}, {From: identCaller, To: identAll}}
		if k.plane == "" {
			continue
		}
		if _, err := k.sync(ctx, b.Node[i], *s); err != nil {
			return err
		}
	}
	return nil
}

// join makes the way between the nodes.
func (k *PartsPath) join(ctx context.Context) error {
	if k.kind == api.PathDirect || k.kind == api.PathRelay {
		return k.tunnels(ctx)
	}
	for i, n := range k.bed.Node {
		s, to := &k.state[i], WireAddr[1-i]
		lines := []string{"tuntap add dev " + s.Node.Tunnel + " mode tun", "link set " + s.Node.Tunnel + " up"} // planes know it by name
		switch k.kind {
		case api.PathRoute:
			lines = append(lines, fmt.Sprintf("route add %s via %s dev %s onlink", subnets[1-i], to, WireDevice))
		case api.PathVXLAN:
			s.Node.VXLAN = vxlanPort
			dev := plane.VXLANDevice(prefix)
			lines = append(lines,
				fmt.Sprintf("link add %s address %s mtu %d type vxlan external dstport %d nolearning", dev, vxlanMAC(WireAddr[i]), wireMTU-50, vxlanPort),
				"link set "+dev+" up",
				fmt.Sprintf("neigh add %s lladdr %s dev %s nud permanent", via6(to), vxlanMAC(to), dev),
				fmt.Sprintf("route add %s encap ip id 1 dst %s via inet6 %s dev %s onlink", subnets[1-i], to, via6(to), dev))
		default:
			return fmt.Errorf("no way between nodes is called %q", k.kind)
		}
		if err := n.IP(ctx, lines...); err != nil {
			return err
		}
	}
	return nil
}

// attach gives a container its address on a node, as netmanager/link does.
func (k *PartsPath) attach(ctx context.Context, node int, c *Namespace, a netip.Addr, ident plane.Ident, mtu int) error {
	b, dev := a.As4(), plane.Device(prefix, a)
	mac := fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
	k.state[node].Endpoints = append(k.state[node].Endpoints, plane.Endpoint{Address: a, Ident: ident, Device: dev})
	if err := k.bed.Node[node].IP(ctx,
		fmt.Sprintf("link add %s address %s mtu %d type veth peer name eth0 address %s mtu %d netns %s", dev, hostMAC, mtu, mac, mtu, c.Path()),
		fmt.Sprintf("link set %s up", dev),
		fmt.Sprintf("route add %s/32 dev %s", a, dev),
		fmt.Sprintf("neigh add %s lladdr %s dev %s nud permanent", a, mac, dev)); err != nil {
		return err
	}
	return c.IP(ctx,
		fmt.Sprintf("addr add %s/32 dev eth0", a), "link set eth0 up",
		fmt.Sprintf("neigh add %s lladdr %s dev eth0 nud permanent", api.GatewayAddr, hostMAC),
		fmt.Sprintf("route add default via %s dev eth0 onlink", api.GatewayAddr))
}

// via6 is the link-local address that stands for a node on the VXLAN device.
func via6(a netip.Addr) netip.Addr {
	b, four := [16]byte{0: 0xfe, 1: 0x80}, a.As4()
	copy(b[12:], four[:])
	return netip.AddrFrom16(b)
}

func vxlanMAC(a netip.Addr) string {
	b := a.As4()
	return fmt.Sprintf("02:54:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
}

type planeOrder struct {
	Plane string
	State plane.State
}

// sync makes a node's plane hold a state and says how long that took.
func (k *PartsPath) sync(ctx context.Context, n *Namespace, s plane.State) (time.Duration, error) {
	var took time.Duration
	err := n.run(ctx, "plane", planeOrder{k.plane, s}, &took)
	return took, err
}

func syncPlane(ctx context.Context, o planeOrder, _ func()) (any, error) {
	p, err := newPlane(o.Plane)
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := p.Sync(ctx, o.State); err != nil {
		return nil, err
	}
	took := time.Since(began)
	return took, p.Close()
}

// FullSync is how long it takes to fill an empty plane with n services, in seconds.
func (k *PartsPath) FullSync(ctx context.Context, n int) (Sample, error) {
	s := k.with(n)
	fresh, err := NewNamespace(ctx, k.bed.Node[0].Name+"-fresh")
	if err != nil {
		return Sample{}, err
	}
	defer fresh.Close()
	lines := []string{
		fmt.Sprintf("tuntap add dev %s mode tun", s.Node.Hold), fmt.Sprintf("tuntap add dev %s mode tun", s.Node.Tunnel),
	}
	for i, e := range s.Endpoints {
		lines = append(lines, fmt.Sprintf("link add %s type veth peer name peer%d", e.Device, i), "link set "+e.Device+" up")
	}
	lines = append(lines, "link add "+WireDevice+" type veth peer name peer",
		fmt.Sprintf("addr add %s/24 dev %s", WireAddr[0], WireDevice), "link set peer up", "link set "+WireDevice+" up")
	if s.Node.VXLAN != 0 {
		lines = append(lines, fmt.Sprintf("link add %s type vxlan external dstport %d", plane.VXLANDevice(prefix), vxlanPort))
	}
	if err := fresh.IP(ctx, lines...); err != nil {
		return Sample{}, err
	}
	return metered(func() (float64, error) {
		took, err := k.sync(ctx, fresh, s)
		return took.Seconds(), err
	})
}

// Lookup is what n services more add to a measurement of the first: the plane is
// filled and emptied in turn, and the difference of the medians is the sample.
func (k *PartsPath) Lookup(ctx context.Context, n int, measure func() (Sample, error)) (Sample, error) {
	const turns = 5
	few, many := k.state[0], k.with(n)
	var with, without []float64
	return metered(func() (float64, error) {
		for range turns {
			for _, m := range []struct {
				state plane.State
				to    *[]float64
			}{{many, &with}, {few, &without}} {
				if _, err := k.sync(ctx, k.bed.Node[0], m.state); err != nil {
					return 0, err
				}
				s, err := measure()
				if err != nil {
					return 0, err
				}
				*m.to = append(*m.to, s.Value)
			}
		}
		return median(with) - median(without), nil
	})
}

// with is the first node's state and n services more, two instances each, behind
// a hundred peers.
func (k *PartsPath) with(n int) plane.State {
	s := k.state[0]
	s.Services, s.Sources, s.Allowed, s.Peers = slices.Clone(s.Services), slices.Clone(s.Sources), slices.Clone(s.Allowed), slices.Clone(s.Peers)
	const peers = 100
	next := netip.MustParseAddr("10.17.0.0")
	for i := range peers {
		p := plane.Peer{Key: api.PeerKey{3, byte(i)}, Path: api.PathDirect, Subnets: []netip.Prefix{netip.PrefixFrom(next, 24)}}
		s.Peers = append(s.Peers, p)
		b := next.As4()
		b[2]++
		next = netip.AddrFrom4(b)
	}
	vip := netip.MustParseAddr("10.30.1.0")
	for i := range n {
		id := identMore + plane.Ident(i)
		v := plane.Service{Address: vip, Ident: id}
		for j := range 2 {
			nth := 2*i + j
			a := netip.AddrFrom4([4]byte{10, 17, byte(nth % peers), byte(1 + nth/peers)})
			v.Backends = append(v.Backends, plane.Backend{Address: a, Weight: 1})
			s.Sources = append(s.Sources, plane.Source{Address: a, Ident: id})
		}
		s.Services = append(s.Services, v)
		s.Allowed = append(s.Allowed, plane.Pair{From: identCaller, To: id})
		vip = vip.Next()
	}
	return s
}
