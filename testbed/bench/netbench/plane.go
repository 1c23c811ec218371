package netbench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

func init() { roles["plane"] = as(keepPlane) }

// Plane returns the data plane "nft" or "ebpf" over plain routes without a netmanager, for
// measurements that change its content directly.
func Plane(name string) *PlanePath { return &PlanePath{plane: name} }

// PlanePath is the Path of Plane. No process carries packets.
type PlanePath struct {
	plain
	plane string
	bed   *Bed
	state [2]plane.State

	keepers [2]*keeper
	twin    *PlanePath // on a separate bed, for comparison
}

const (
	prefix  = "tl"
	hostMAC = "02:fe:00:00:00:01"
)

// The configuration of nodes, for Plane and Daemon.
var (
	ranges  = wire.DefaultNetRanges()
	subnets = [2]netip.Prefix{netip.MustParsePrefix("10.16.0.0/26"), netip.MustParsePrefix("10.16.0.64/26")}
	one     = netip.MustParseAddr("10.30.0.1") // semantic address of one replica
	all     = netip.MustParseAddr("10.30.0.2") // of all others
)

// The idents of services.
const (
	identCaller plane.Ident = 1 + iota
	identOne
	identMore // and following
)

// Target implements Path.
func (*PlanePath) Target() netip.Addr { return one }

// Up implements Path.
func (k *PlanePath) Up(ctx context.Context, b *Bed) error {
	twin, err := NewBed(ctx, b.Node[0].Name+"'s twin", Shape{OneCPU: true})
	if err != nil {
		return err
	}
	b.ends = append(b.ends, twin.Close)
	k.twin = &PlanePath{plane: k.plane}
	return errors.Join(k.up(ctx, b), k.twin.up(ctx, twin))
}

func (k *PlanePath) up(ctx context.Context, b *Bed) error {
	k.bed = b
	for i, n := range b.Node {
		s := &k.state[i]
		s.Node = plane.Node{Ranges: ranges, Subnet: subnets[i], Prefix: prefix, Tunnel: prefix + "tun", Queue: prefix + "hold"}
		s.Peers = []plane.Peer{{Key: api.PeerKey{byte(2 - i)}, Subnets: []netip.Prefix{subnets[1-i]}, Path: api.PathRoute, Via: WireAddr[1-i], Accepts: plane.Paths{Route: true}}}
		if err := n.IP(ctx,
			fmt.Sprintf("tuntap add dev %s mode tun", s.Node.Queue), fmt.Sprintf("link set %s up", s.Node.Queue),
			fmt.Sprintf("tuntap add dev %s mode tun", s.Node.Tunnel), fmt.Sprintf("link set %s up", s.Node.Tunnel),
			fmt.Sprintf("route add %s dev %s", ranges.Instances, s.Node.Queue), fmt.Sprintf("route add %s dev %s", ranges.Services, s.Node.Queue),
			fmt.Sprintf("route add %s via %s dev %s onlink", subnets[1-i], WireAddr[1-i], WireDevice)); err != nil {
			return err
		}
		if err := k.attach(ctx, i, b.Container[i], subnets[i].Addr().Next(), identCaller+plane.Ident(i)); err != nil {
			return err
		}
	}
	for i := range k.state {
		s := &k.state[i]
		s.Services = []plane.Service{{Address: one, Ident: identOne, Backends: []plane.Backend{{Address: k.state[1].Endpoints[0].Address, Weight: 1}}}}
		far := k.state[1-i].Endpoints[0]
		s.Sources = []plane.Source{{Address: far.Address, Ident: far.Ident}}
		s.Allowed = []plane.Pair{{From: identCaller, To: identOne}}
		c, err := k.keeper(b.Node[i])
		if err != nil {
			return err
		}
		b.procs = append(b.procs, c.child)
		if _, err := c.sync(*s); err != nil {
			return err
		}
		k.keepers[i] = c
	}
	return nil
}

// attach configures a container's address on a node, as netmanager/link does.
func (k *PlanePath) attach(ctx context.Context, node int, c *Namespace, a netip.Addr, ident plane.Ident) error {
	b, dev := a.As4(), plane.Device(prefix, a)
	mac := fmt.Sprintf("02:00:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3])
	k.state[node].Endpoints = append(k.state[node].Endpoints, plane.Endpoint{Address: a, Ident: ident, Device: dev})
	if err := k.bed.Node[node].IP(ctx,
		fmt.Sprintf("link add %s address %s type veth peer name eth0 address %s netns %s", dev, hostMAC, mac, c.Path()),
		fmt.Sprintf("link set %s up", dev),
		fmt.Sprintf("route add %s/32 dev %s", a, dev),
		fmt.Sprintf("neigh add %s lladdr %s dev %s nud permanent", a, mac, dev)); err != nil {
		return err
	}
	return c.IP(ctx,
		fmt.Sprintf("addr add %s/32 dev eth0", a), "link set eth0 up",
		fmt.Sprintf("neigh add %s lladdr %s dev eth0 nud permanent", wire.GatewayAddr, hostMAC),
		fmt.Sprintf("route add default via %s dev eth0 onlink", wire.GatewayAddr))
}

type planeOrder struct{ Plane string }

// keeper is a child that holds a plane open and applies states to it, as a netmanager does. It
// loads the programs once.
func (k *PlanePath) keeper(n *Namespace) (*keeper, error) {
	c, err := n.start("plane", planeOrder{k.plane})
	if err != nil {
		return nil, err
	}
	return &keeper{c, json.NewDecoder(c.out)}, nil
}

type keeper struct {
	*child
	in *json.Decoder
}

// sync applies a state to the plane and returns how long that took.
func (k *keeper) sync(s plane.State) (took time.Duration, err error) {
	if err := json.NewEncoder(k.stdin).Encode(s); err != nil {
		return 0, fmt.Errorf("order %s: %w", k.name, k.why(err))
	}
	if err := k.in.Decode(&took); err != nil {
		return 0, fmt.Errorf("%s: %w", k.name, k.why(err))
	}
	return took, nil
}

func keepPlane(_ context.Context, o planeOrder, _ func()) (any, error) {
	p, err := newPlane(o.Plane)
	if err != nil {
		return nil, err
	}
	defer p.Close()
	for in := json.NewDecoder(stdin); ; {
		var s plane.State
		if err := in.Decode(&s); err != nil {
			return nil, nil // the parent has closed the pipe
		}
		began := time.Now()
		if err := p.Sync(context.Background(), s); err != nil {
			return nil, err
		}
		if err := json.NewEncoder(os.Stdout).Encode(time.Since(began)); err != nil {
			return nil, err
		}
	}
}

// FullSync measures the seconds to apply n services to an empty plane, and returns the time to
// create that plane with its programs.
func (k *PlanePath) FullSync(ctx context.Context, n int) (_ Sample, made time.Duration, err error) {
	s := k.with(n)
	fresh, err := NewNamespace(ctx, k.bed.Node[0].Name+"-fresh")
	if err != nil {
		return Sample{}, 0, err
	}
	defer fresh.Close()
	lines := []string{
		fmt.Sprintf("tuntap add dev %s mode tun", s.Node.Queue), fmt.Sprintf("tuntap add dev %s mode tun", s.Node.Tunnel),
	}
	for i, e := range s.Endpoints {
		lines = append(lines, fmt.Sprintf("link add %s type veth peer name peer%d", e.Device, i), "link set "+e.Device+" up")
	}
	lines = append(lines, "link add "+WireDevice+" type veth peer name peer",
		fmt.Sprintf("addr add %s/24 dev %s", WireAddr[0], WireDevice), "link set peer up", "link set "+WireDevice+" up")
	if err := fresh.IP(ctx, lines...); err != nil {
		return Sample{}, 0, err
	}
	c, err := k.keeper(fresh)
	if err != nil {
		return Sample{}, 0, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if made, err = c.sync(k.state[0]); err != nil {
		return Sample{}, 0, err
	}
	got, err := metered(func() (float64, error) {
		took, err := c.sync(s)
		return took.Seconds(), err
	})
	return got, made, err
}

// LookupInTrip measures the µs that n more services add to a round trip in an existing flow, and
// LookupInConnect to the first round trip of a new connection. The result is a median of samples;
// swing is the greatest difference between them.
func (k *PlanePath) LookupInTrip(n int, d time.Duration) (_ Sample, swing float64, _ error) {
	return k.lookup("ping", n, d)
}

// LookupInConnect is LookupInTrip for a new connection.
func (k *PlanePath) LookupInConnect(n int, d time.Duration) (_ Sample, swing float64, _ error) {
	return k.lookup("refusal", n, d)
}

// lookup compares a full plane with an empty one on another bed, in alternating requests, and then
// again with the roles swapped, so that differences between the beds cancel out.
func (k *PlanePath) lookup(what string, n int, d time.Duration) (_ Sample, swing float64, err error) {
	const turns = 5 // number of pairs of turns, odd
	c, err := k.bed.Container[0].start("compare", comparison{What: what, Target: one, Other: k.twin.bed.Container[0].Path(), For: d})
	if err != nil {
		return Sample{}, 0, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if err := c.ready(); err != nil {
		return Sample{}, 0, err
	}
	in, planes := json.NewDecoder(c.out), [2]*PlanePath{k, k.twin}
	s, err := metered(func() (float64, error) {
		var more, added []float64
		for i := range turns + 1 {
			for j, p := range planes {
				s := p.state[0]
				if i%2 == j {
					s = p.with(n)
				}
				if _, err := p.keepers[0].sync(s); err != nil {
					return 0, err
				}
			}
			var v float64
			_, err := fmt.Fprintln(c.stdin)
			if err == nil {
				err = in.Decode(&v)
			}
			if err != nil {
				return 0, fmt.Errorf("%s: %w", c.name, c.why(err))
			}
			if i%2 == 1 {
				v = -v
			}
			more = append(more, v)
		}
		for i := range turns {
			added = append(added, (more[i]+more[i+1])/2)
		}
		v := median(added) // sorts them
		swing = added[turns-1] - added[0]
		return v, nil
	})
	return s, swing, err
}

// with returns the first node's state with n more services, two instances each, behind a hundred
// peers.
func (k *PlanePath) with(n int) plane.State {
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
