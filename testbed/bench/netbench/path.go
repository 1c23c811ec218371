package netbench

import (
	"context"
	"fmt"
	"net/netip"
)

// Path is one way for packets from the container of the first node to those of the second.
//
// Up sets it up on a new bed, and returns when packets pass. Everything that it starts ends with
// the bed.
//
// Target returns the address at which the first container reaches that of the second node, and
// Replicas the addresses of the further ones: one semantic address for all of them, or the
// address of each if the path has no semantic addresses.
//
// Processes returns those that carry packets, whose CPU time and memory count for the path; none
// if only the kernel carries packets.
type Path interface {
	Up(ctx context.Context, b *Bed) error
	Target() netip.Addr
	Replicas() []netip.Addr
	Processes() []int
}

// addresses of the baselines' containers.
var containerAddr = [2]netip.Addr{netip.MustParseAddr("10.16.0.2"), netip.MustParseAddr("10.16.1.2")}

// plain is the common part of the baselines: containers behind each node with their own addresses,
// each on a separate veth pair.
type plain struct {
	procs    []*child
	replicas []netip.Addr
}

// Target implements Path.
func (*plain) Target() netip.Addr { return containerAddr[1] }

// Replicas implements Path.
func (p *plain) Replicas() []netip.Addr { return p.replicas }

// Processes implements Path.
func (p *plain) Processes() []int {
	var pids []int
	for _, c := range p.procs {
		pids = append(pids, c.pid())
	}
	return pids
}

// containers configures addresses and routes of each node's container.
func (p *plain) containers(ctx context.Context, b *Bed, mtu int) error {
	for i, n := range b.Node {
		if err := veth(ctx, n, "c0", b.Container[i], "eth0", mtu); err != nil {
			return err
		}
		gateway := containerAddr[i].Prev()
		if err := n.IP(ctx, fmt.Sprintf("addr add %s/24 dev c0", gateway)); err != nil {
			return err
		}
		if err := b.Container[i].IP(ctx,
			fmt.Sprintf("addr add %s/24 dev eth0", containerAddr[i]),
			fmt.Sprintf("route add default via %s", gateway)); err != nil {
			return err
		}
	}
	return p.further(ctx, b, mtu)
}

// further configures addresses and routes of the second node's further containers.
func (p *plain) further(ctx context.Context, b *Bed, mtu int) error {
	gateway, a := containerAddr[1].Prev(), containerAddr[1]
	for i, c := range b.More {
		a = a.Next()
		dev := fmt.Sprintf("c%d", i+1)
		if err := veth(ctx, b.Node[1], dev, c, "eth0", mtu); err != nil {
			return err
		}
		if err := b.Node[1].IP(ctx, fmt.Sprintf("route add %s/32 dev %s", a, dev)); err != nil {
			return err
		}
		if err := c.IP(ctx,
			fmt.Sprintf("addr add %s/32 dev eth0", a),
			fmt.Sprintf("route add default via %s dev eth0 onlink", gateway)); err != nil {
			return err
		}
		p.replicas = append(p.replicas, a)
	}
	return nil
}

// behind returns the network of a node's containers.
func behind(i int) netip.Prefix { return netip.PrefixFrom(containerAddr[i], 24).Masked() }

// Raw is a veth pair between the containers, without nodes.
func Raw() Path { return &raw{} }

type raw struct{ plain }

// Up implements Path.
func (*raw) Up(ctx context.Context, b *Bed) error {
	if err := veth(ctx, b.Container[0], WireDevice, b.Container[1], WireDevice, wireMTU); err != nil {
		return err
	}
	for i, c := range b.Container {
		if err := c.IP(ctx, fmt.Sprintf("addr add %s peer %s dev %s", containerAddr[i], containerAddr[1-i], WireDevice)); err != nil {
			return err
		}
	}
	b.wired = b.Container
	return nil
}

// Routed is the nodes' forwarding by plain routes, without a semantic address.
func Routed() Path { return &routed{} }

type routed struct{ plain }

// Up implements Path.
func (r *routed) Up(ctx context.Context, b *Bed) error {
	if err := r.containers(ctx, b, wireMTU); err != nil {
		return err
	}
	for i, n := range b.Node {
		if err := n.IP(ctx, fmt.Sprintf("route add %s via %s", behind(1-i), WireAddr[1-i])); err != nil {
			return err
		}
	}
	return nil
}

// VXLAN is the kernel's VXLAN with plain routes, without a semantic address.
func VXLAN() Path { return &vxlan{} }

type vxlan struct{ plain }

// Up implements Path.
func (v *vxlan) Up(ctx context.Context, b *Bed) error {
	const mtu = wireMTU - 50
	if err := v.containers(ctx, b, mtu); err != nil {
		return err
	}
	for i, n := range b.Node {
		if err := n.IP(ctx,
			fmt.Sprintf("link add vx type vxlan id 1 dstport 4789 local %s remote %s dev %s", WireAddr[i], WireAddr[1-i], WireDevice),
			fmt.Sprintf("link set vx mtu %d up", mtu),
			fmt.Sprintf("addr add 198.51.100.%d/24 dev vx", i+1),
			fmt.Sprintf("route add %s via 198.51.100.%d", behind(1-i), 2-i)); err != nil {
			return err
		}
	}
	return nil
}

// Translated is another path with a semantic address, which one rule of nftables translates,
// without a choice of backend and without policy.
func Translated(p Path) Path { return &translated{p} }

type translated struct{ Path }

// Target implements Path.
func (*translated) Target() netip.Addr { return one }

// Up implements Path.
func (t *translated) Up(ctx context.Context, b *Bed) error {
	if err := t.Path.Up(ctx, b); err != nil {
		return err
	}
	return b.Node[0].Run(ctx, fmt.Sprintf(`table ip translate {
	chain to { type nat hook prerouting priority dstnat; ip daddr %s dnat to %s; }
}
`, one, t.Path.Target()), "nft", "-f", "-")
}
