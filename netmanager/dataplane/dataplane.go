// Package dataplane defines what a netmanager needs from the kernel that forwards packets: the
// choice of a backend for each flow, address translation, and policy. There are two
// implementations, nft (nftables, for every kernel) and ebpf, which pass the tests of
// dataplanetest alike.
//
// A plane's state is in the kernel and works without the netmanager. Package netmanager/overlay
// decides its content; netmanager/link sets up devices and routes.
package dataplane

import (
	"context"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Ports are published on all addresses of the host except those in Loopback and Unpublished, where
// the host's name server and the instances' resolver listen. Localhost is an exception within
// Loopback, for users on the host.
var (
	Loopback    = netip.MustParsePrefix("127.0.0.0/8")
	Localhost   = netip.MustParsePrefix("127.0.0.1/32")
	Unpublished = []netip.Prefix{
		netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fe80::/10"),
	}
)

// Closed are destinations that instances cannot reach unless plane.Node.Open contains them: this
// host, this link, multicast, and the metadata services of clouds, which may be behind a router.
var Closed = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("fd00:ec2::254/128"),
}

// PortUnreachable is the type and code of the ICMP error for a port without a listener (RFC 792).
var PortUnreachable = []byte{3, 3}

// AboutTo is the offset in an ICMP error of the IPv4 destination of the packet that caused it.
const AboutTo = 8 + 16

// Plane applies a plane.State to the kernel. Its methods are not safe for concurrent use.
//
// Sync makes the plane's state exactly s, whatever an earlier process left. Flows whose backend
// remains lose no packet. Before the first Sync, and after Remove, Apply, Usage and Traffic fail with
// ErrInvalid.
//
// Apply applies one change as a whole or not at all. It does not affect other flows.
//
// Usage reads all counters. Its cost grows with the size of the state, and it is called rarely.
// Traffic reads only the counters of peers.
//
// Sync and Apply fail with ErrInvalid for what planes do not support (Check, CheckPrefix).
//
// Remove removes everything of the plane from the kernel, and succeeds if there is nothing.
// Close frees resources and leaves the kernel as it is.
//
// Guarantees for flows:
//   - A flow keeps its backend. UDP flows end after 30 s without a packet (120 s once
//     answered), or after the host's net.netfilter.nf_conntrack_udp_timeout and
//     …_udp_timeout_stream as of the last Sync or change of Node; TCP flows end with their
//     connection.
//   - New flows to a service go to its backends by weighted round robin, per service and not per
//     client: with equal weights the flows of two backends differ by at most one per processor.
//   - TCP, UDP, SCTP, ICMP echo to a semantic address, and ICMP errors of flows pass. Packets
//     of any size and fragments pass.
//   - An instance that calls its own service may be its own backend.
//   - A packet is dropped if its source is not the address of the endpoint that sends it, or if it
//     arrives by a path that its peer does not accept. The tunnel has checked the packets from its
//     device: the plane accepts them from any peer's subnet and from unknown subnets, but not from
//     this node's. Thus one end can change the path before the other.
//   - A flow that no Pair allows is dropped at the node that sends and at the one that receives. An
//     allowed flow ends when the pair is denied. All flows of an address end when it gets
//     another ident or its endpoint is dropped.
//   - A packet to an unknown address of the ranges, or from an unknown address to an endpoint,
//     goes to the packet queue's device. A packet from that device is treated as if it had arrived
//     by its path. An unencrypted packet from an unknown address outside all known peers' subnets
//     is forged.
//   - A client on this node that continues a TCP flow that ended or is unknown gets a reset.
//   - An instance reaches the resolver of its node. While the resolver is down, as in a
//     restart, a UDP query gets no error, so that the client repeats it.
//
// The networks that the host is connected to are closed, as of the last Sync or change of Node. The
// caller applies the Node again when they change.
type Plane interface {
	Sync(ctx context.Context, s plane.State) error
	Apply(ctx context.Context, c plane.Change) error
	Usage(ctx context.Context) (plane.Usage, error)
	Traffic(ctx context.Context) (map[api.PeerKey][2]uint64, error)
	Remove(ctx context.Context) error
	Close() error
}
