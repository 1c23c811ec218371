// Package dataplane is what a netmanager asks of the kernel that forwards
// packets: the choice of a backend per flow, the rewriting, and policy. There are
// two implementations, nft (everywhere) and ebpf (where the kernel allows), which
// pass dataplanetest alike.
//
// A plane lives in the kernel: it goes on while its netmanager is away. What it
// should hold is the core's to say (netmanager/overlay), devices and routes are
// netmanager/link's.
package dataplane

import (
	"context"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Published ports are those of the host's addresses that others have a part in, and
// of Localhost, which people on the host call. What else of Loopback there is, and
// Unpublished, is the host's with all its ports: its name server is there, and
// the resolver of its instances.
var (
	Loopback    = netip.MustParsePrefix("127.0.0.0/8")
	Localhost   = netip.MustParsePrefix("127.0.0.1/32")
	Unpublished = []netip.Prefix{
		netip.MustParsePrefix("169.254.0.0/16"), netip.MustParsePrefix("::1/128"), netip.MustParsePrefix("fe80::/10"),
	}
)

// Closed are destinations that instances do not reach unless a Node opens them: this host,
// this link, many, and where clouds tell their machines secrets, which may be behind a router.
var Closed = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("169.254.0.0/16"),
	netip.MustParsePrefix("224.0.0.0/3"),
	netip.MustParsePrefix("::/96"), netip.MustParsePrefix("fe80::/10"), netip.MustParsePrefix("ff00::/8"),
	netip.MustParsePrefix("100.100.100.200/32"), netip.MustParsePrefix("fd00:ec2::254/128"),
}

// PortUnreachable begins the ICMP error that says that nobody has a port (RFC 792).
var PortUnreachable = []byte{3, 3}

// AboutTo is where an ICMP error tells the IPv4 destination of the packet that it is
// about, counted from its own header.
const AboutTo = 8 + 16

// Plane holds what a plane.State says. Methods are not for concurrent use.
//
// Sync makes the plane exactly s, whatever an earlier life left. Flows whose
// backend is still there go on without a lost packet.
//
// Apply takes one change as a whole or not at all. Flows that it does not concern
// see nothing of it.
//
// Usage reads what was used. It costs what is in use, and is called rarely. Traffic
// is its Peers alone, and costs what there are of those.
//
// Remove takes everything of ours away, and succeeds where there is nothing.
// Close lets go and leaves the kernel as it is.
//
// What a flow may count on:
//   - It keeps its backend for its life; UDP flows end after 30 s without a packet
//     (120 s once answered), or what the host's net.netfilter.nf_conntrack_udp_timeout and
//     …_udp_timeout_stream said at the last Sync or change of Node; TCP flows with their
//     connection.
//   - New flows to a service go to its backends in turn, by weight, per service and
//     not per client, exactly: with equal weights no two backends' counts differ by
//     more than one per processor.
//   - TCP, UDP, SCTP, ICMP echo to a semantic address, and ICMP errors of flows
//     pass. Nothing depends on a packet's size; fragments pass.
//   - An instance that calls its own service may be answered by itself.
//   - A packet whose source is not its endpoint's own address is dropped, and so is
//     one that comes from another way than its peer's. What comes out of the tunnel
//     device was checked by the tunnel, and is taken in from any peer's subnet or an
//     unknown one, but not from this node's: so a way may change at one end first.
//   - A flow that Pair does not allow is dropped where it leaves and where it arrives.
//     One that was allowed ends when the pair is denied, and all flows of an address end
//     when it is given to another ident or its endpoint is dropped.
//   - A packet to an address of the ranges that the plane does not know, or from an
//     address that it does not know to an endpoint, goes to the hold device; what the hold
//     device sends is treated as if it had come the usual way. A packet from an unknown
//     address that comes in the clear from no known peer's subnet is forged.
//   - A client on this node that goes on with a TCP flow that ended, or that the plane does
//     not know, is reset.
//   - An instance reaches the resolver of its node. While nobody serves there, as at a
//     restart, a query over UDP is not refused: its client asks again.
//
// The networks that the host is connected to are closed as they were at the last Sync or
// change of Node: whoever sees them change applies the Node again.
type Plane interface {
	Sync(ctx context.Context, s plane.State) error
	Apply(ctx context.Context, c plane.Change) error
	Usage(ctx context.Context) (plane.Usage, error)
	Traffic(ctx context.Context) (map[api.PeerKey][2]uint64, error)
	Remove(ctx context.Context) error
	Close() error
}
