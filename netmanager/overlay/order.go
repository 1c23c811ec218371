package overlay

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
)

// The adapters that carry out the core's orders, beside wire.ToCluster.
const (
	ToPlane    api.Addr = "plane"    // plane.Change, in order, Count and Ask
	ToTunnel   api.Addr = "tunnel"   // Tunnel…
	ToQueue    api.Addr = "hold"     // Release, Refuse: to the packet queue
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
	// TunnelMeasure measures the round trip to a peer now, in a session that begins for
	// it if there is none. Given twice, it measures twice.
	TunnelMeasure struct{ Key api.PeerKey }
	// TunnelCoord is the node's coordinate, for peers that measure it.
	TunnelCoord struct{ api.Coordinate }
	// TunnelHere has the addresses of all endpoints of this node. Packets of peers to
	// other addresses of its subnet are Strays.
	TunnelHere struct{ Addresses []netip.Addr }
	// TunnelNotice sends a peer a notice, in a session that begins for it if there is none.
	// It may be lost.
	TunnelNotice struct {
		Key api.PeerKey
		peermsg.Notice
	}
	// TunnelNoticeAck confirms a peer's notice, once the plane follows it.
	TunnelNoticeAck struct {
		Key    api.PeerKey
		Serial uint64
	}
	// TunnelTerms sends a peer terms, in a session that begins for them if there is none,
	// once the plane accepts what they promise. They may be lost.
	TunnelTerms struct {
		Key api.PeerKey
		peermsg.Terms
	}
	// TunnelSend sends a peer a message if there is a session, or with Connect in one that
	// begins for it. It may be lost.
	TunnelSend struct {
		Key     api.PeerKey
		Message peermsg.Message
		Connect bool
	}
	// Count requests from the plane what passed by kernel paths. Counted answers it.
	Count struct{}
	// Release sends on the packets that are queued for a remote address, which the plane
	// knows now.
	Release struct{ Remote netip.Addr }
	// Refuse drops the packets from Local (zero: from any endpoint) that are queued for
	// Remote, and answers them with ICMP: administratively prohibited if Denied, else host
	// unreachable.
	Refuse struct {
		Local, Remote netip.Addr
		Denied        bool
	}
	// Answered means that a name that was queried can be looked up now.
	Answered struct{ Name string }
	// Ask requests the plane's counters. Used answers it.
	Ask struct{}
)

// volatile reports whether an order may be carried out while nothing can be saved.
// The cluster and the peers send again what is known of the network, and a new process
// configures the kernel itself. But a new process accepts unencrypted packets as the
// last one did, so that terms have to be saved before they are sent.
func volatile(msg any) bool {
	_, terms := msg.(TunnelTerms)
	return !terms
}
