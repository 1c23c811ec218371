package netbench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"
)

// Bed is a test bed: two nodes with a link between them and a container on each; the second
// node may have more. A Path determines the addresses of containers and how packets travel
// between the nodes.
type Bed struct {
	Node      [2]*Namespace
	Container [2]*Namespace
	More      []*Namespace // further containers of the second node

	wired  [2]*Namespace  // the ends of the link: the nodes, except for Raw
	ends   []func() error // closed with the bed
	wan    *Namespace     // between the nodes, if Slow or Apart
	slowly bool           // the link is slow
	wire   *child         // forwards its frames
	slowAs slowWireOrder  // present properties of the slow link
	procs  []*child       // in the order of their start
}

// WireAddr are the nodes' addresses on the link, a /24.
var WireAddr = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

// WireDevice is the nodes' device on the link.
const WireDevice = "wire"

const wireMTU = 1500

// Shape configures a bed.
type Shape struct {
	More  int  // further containers of the second node
	Slow  bool // a link with delay and loss
	Apart bool // the nodes reach a host between them, which forwards nothing, but not each other
	// OneCPU pins servers and clients to one processor, for differences of a microsecond: waking
	// a process on another processor costs ten.
	OneCPU bool
}

// NewBed sets up a bed.
func NewBed(ctx context.Context, name string, shape Shape) (_ *Bed, err error) {
	b := &Bed{}
	defer func() {
		if err != nil {
			_ = b.Close()
		}
	}()
	for i, end := range []string{"a", "b"} {
		if b.Node[i], err = NewNamespace(ctx, name+"/node-"+end); err != nil {
			return nil, err
		}
		if b.Container[i], err = NewNamespace(ctx, name+"/container-"+end); err != nil {
			return nil, err
		}
	}
	for i := range shape.More {
		n, err := NewNamespace(ctx, fmt.Sprintf("%s/container-%d", name, i+2))
		if err != nil {
			return nil, err
		}
		b.More = append(b.More, n)
	}
	for _, n := range append([]*Namespace{b.Container[0], b.Container[1]}, b.More...) {
		n.oneCPU = shape.OneCPU
		if err := n.Sysctl(ctx, "net.ipv4.ip_local_port_range=1024 65535"); err != nil { // many connections in a short time
			return nil, err
		}
	}
	switch {
	case shape.Slow:
		err = b.slow(ctx, name)
	case shape.Apart:
		err = b.between(ctx, name)
	default:
		err = veth(ctx, b.Node[0], WireDevice, b.Node[1], WireDevice, wireMTU)
	}
	if err != nil {
		return nil, err
	}
	for i, n := range b.Node {
		lines := []string{fmt.Sprintf("addr add %s/24 dev %s", WireAddr[i], WireDevice)}
		if shape.Apart {
			lines = []string{fmt.Sprintf("addr add %s/32 dev %s", WireAddr[i], WireDevice), fmt.Sprintf("route add %s dev %s", hostBetween, WireDevice)}
		}
		if err := n.IP(ctx, lines...); err != nil {
			return nil, err
		}
		if err := n.Sysctl(ctx, "net.ipv4.ip_forward=1"); err != nil {
			return nil, err
		}
	}
	b.wired = b.Node
	if shape.Slow {
		return b, b.setSlow(ctx, slowWireOrder{})
	}
	return b, nil
}

// The namespace between the nodes has a device towards each.
var wanDevices = [2]string{"w0", "w1"}

// hostBetween is its address, if it is a host.
var hostBetween = netip.MustParseAddr("192.0.2.254")

// between puts a host between the nodes.
func (b *Bed) between(ctx context.Context, name string) (err error) {
	if b.wan, err = NewNamespace(ctx, name+"/between"); err != nil {
		return err
	}
	for i, n := range b.Node {
		if err := veth(ctx, n, WireDevice, b.wan, wanDevices[i], wireMTU); err != nil {
			return err
		}
		if err := b.wan.IP(ctx, fmt.Sprintf("addr add %s/32 dev %s", hostBetween, wanDevices[i]), fmt.Sprintf("route add %s dev %s", WireAddr[i], wanDevices[i])); err != nil {
			return err
		}
	}
	return nil
}

// Close ends the bed and its processes.
func (b *Bed) Close() error {
	var errs []error
	for _, c := range slices.Backward(b.procs) {
		errs = append(errs, c.stop())
	}
	if b.wire != nil {
		errs = append(errs, b.wire.stop())
	}
	for _, fn := range slices.Backward(b.ends) {
		errs = append(errs, fn())
	}
	for _, n := range append([]*Namespace{b.Node[0], b.Node[1], b.Container[0], b.Container[1], b.wan}, b.More...) {
		if n != nil {
			errs = append(errs, n.Close())
		}
	}
	return errors.Join(errs...)
}

// start starts a child that runs as long as the bed, and waits until it is ready.
func (b *Bed) start(n *Namespace, name string, order any) (*child, error) {
	c, err := n.start(name, order)
	if err != nil {
		return nil, err
	}
	b.procs = append(b.procs, c)
	return c, c.ready()
}

// Wire has the properties of the link between the nodes.
type Wire struct {
	PerPacket bool // no offloads: packets are sent singly, as by a plain network card
	Mbit      int  // 0: no limit

	// For a slow link, which always sends packets singly and has no rate limit.
	RTT  time.Duration // half of it each way
	Loss float64       // of packets, each way, 0 to 1
}

// SetWire sets the properties of the link. Packets in flight may be lost.
func (b *Bed) SetWire(ctx context.Context, w Wire) error {
	if b.slowly {
		return b.setSlow(ctx, slowWireOrder{w.RTT / 2, w.Loss})
	}
	onOff := "on"
	if w.PerPacket {
		onOff = "off"
	}
	for _, n := range b.wired {
		if err := n.Run(ctx, "", "ethtool", "-K", WireDevice, "tso", onOff, "gso", onOff, "gro", onOff, "tx-udp-segmentation", onOff); err != nil {
			return err
		}
		_ = n.Run(ctx, "", "tc", "qdisc", "del", "dev", WireDevice, "root") // there may be none
		if w.Mbit > 0 {
			if err := n.Run(ctx, "", "tc", "qdisc", "add", "dev", WireDevice, "root", "tbf",
				"rate", fmt.Sprintf("%dmbit", w.Mbit), "burst", "64kb", "latency", "50ms"); err != nil {
				return err
			}
		}
	}
	return nil
}
