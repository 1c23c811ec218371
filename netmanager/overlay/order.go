package overlay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
)

// The adapters that carry out the core's orders, in addition to wire.ToCluster.
const (
	ToPlane    api.Addr = "plane"    // plane.Change (in sequence), Count, Ask
	ToTunnel   api.Addr = "tunnel"   // Tunnel…
	ToQueue    api.Addr = "hold"     // Release, Refuse, Hold: to the packet queue
	ToResolver api.Addr = "resolver" // Answered
)

// The orders to adapters. Each may be given twice.
type (
	// TunnelSelf is the node's own lease, for the tunnel and its relay.
	TunnelSelf struct{ wire.NetLease }
	// TunnelPeer adds a peer, or replaces its record.
	TunnelPeer struct{ api.Peer }
	// TunnelDrop removes a peer and ends its session.
	TunnelDrop struct{ Key api.PeerKey }
	// TunnelMeasure measures the round trip to a peer, and starts a session if there is none. Given
	// twice, it measures twice.
	TunnelMeasure struct{ Key api.PeerKey }
	// TunnelCoord is the node's coordinate, which the tunnel sends to peers that measure the round trip.
	TunnelCoord struct{ api.Coordinate }
	// TunnelAddresses lists the addresses of all endpoints on this node. The tunnel reports packets from peers
	// to other addresses of the subnet as Stray.
	TunnelAddresses struct{ Addresses []netip.Addr }
	// TunnelNotice sends a peer a notice, and starts a session if there is none. It may be lost.
	TunnelNotice struct {
		Key api.PeerKey
		peermsg.Notice
	}
	// TunnelNoticeAck confirms a peer's notice after the plane has applied it.
	TunnelNoticeAck struct {
		Key    api.PeerKey
		Serial uint64
	}
	// TunnelTerms sends a peer terms, and starts a session if there is none. It follows the plane's
	// change that makes the node accept the packets. It may be lost.
	TunnelTerms struct {
		Key api.PeerKey
		peermsg.Terms
	}
	// TunnelSend sends a peer a message if there is a session. Connect starts one. It may be lost.
	TunnelSend struct {
		Key     api.PeerKey
		Message peermsg.Message
		Connect bool
	}
	// Count requests the plane's counters of kernel paths. Counted answers it.
	Count struct{}
	// Release sends the packets that are queued for a remote address, because the plane can forward them.
	Release struct{ Remote netip.Addr }
	// Hold keeps the packets that are or will be queued for Remote, a sleeping service, for a time.
	Hold struct {
		Remote netip.Addr
		For    time.Duration
	}
	// Refuse drops the packets from Local (zero: from any endpoint) that are queued for
	// Remote, and answers them with ICMP: administratively prohibited if Denied, else host
	// unreachable.
	Refuse struct {
		Local, Remote netip.Addr
		Denied        bool
	}
	// Answered means that the look-up of a name has an answer.
	Answered struct{ Name string }
	// Ask requests all counters of the plane. Used answers it.
	Ask struct{}
)

// volatile reports whether an order may be carried out while nothing can be saved. The cluster and the
// peers repeat network state, and a new process configures the kernel itself. Terms are the exception: a
// new process must accept the same unencrypted packets, so terms are saved before they are sent.
func volatile(msg any) bool {
	_, terms := msg.(TunnelTerms)
	return !terms
}
