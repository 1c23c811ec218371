package overlay

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/agree"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
)

// The adapters that a node's network core gives orders to, beside api.ToCluster.
const (
	ToPlane    api.Addr = "plane"    // plane.Change, in order, and Count
	ToTunnel   api.Addr = "tunnel"   // Tunnel…
	ToHold     api.Addr = "hold"     // Release, Refuse
	ToResolver api.Addr = "resolver" // Answered
)

// The orders to adapters. Each may be given twice.
type (
	// TunnelSelf is the node's own lease, for the tunnel and its relay.
	TunnelSelf struct{ api.NetLease }
	// TunnelPeer makes a peer known, or renews what is known of it.
	TunnelPeer struct{ api.Peer }
	// TunnelDrop forgets a peer; its session ends.
	TunnelDrop struct{ Key api.PeerKey }
	// TunnelMeasure has the round trip to a peer measured now, in a session that
	// begins for that where there is none. Twice measures twice.
	TunnelMeasure struct{ Key api.PeerKey }
	// TunnelCoord is where the node is, for peers that measure it.
	TunnelCoord struct{ api.Coordinate }
	// TunnelHere are the addresses of all instances of this node: what peers send to
	// others of its subnet is a Stray.
	TunnelHere struct{ Addresses []netip.Addr }
	// TunnelTell tells a peer, in a session that begins for that where there is none. It
	// may be lost.
	TunnelTell struct {
		Key api.PeerKey
		notice.Notice
	}
	// TunnelHeed confirms a peer's notice, once the plane has taken what follows from it.
	TunnelHeed struct {
		Key    api.PeerKey
		Serial uint64
	}
	// TunnelTerms tells a peer, in a session that begins for that where there is none,
	// once the plane takes what they promise. It may be lost.
	TunnelTerms struct {
		Key api.PeerKey
		agree.Terms
	}
	// TunnelSay tells a peer, in the session that there is, or in one that begins for
	// that. It may be lost.
	TunnelSay struct {
		Key     api.PeerKey
		Message agree.Message
		Connect bool
	}
	// Count asks the plane what passed by kernel paths: Counted answers.
	Count struct{}
	// Release sends on what is held for the remote address: the plane knows it now.
	Release struct{ Remote netip.Addr }
	// Refuse answers what is held of Local, or of everybody where that is zero, for
	// Remote with ICMP (administratively prohibited if Denied, else host unreachable)
	// and drops it: what one may not do, another may wait for.
	Refuse struct {
		Local, Remote netip.Addr
		Denied        bool
	}
	// Answered says that a name that was asked for can be looked up now.
	Answered struct{ Name string }
	// Ask has the plane read its usage and hand it in as Used.
	Ask struct{}
)

// volatile reports whether a message may go out while nothing can be saved. What is
// known of the network the cluster and the peers say again, and a new life makes the kernel
// what it knows itself. But it takes in what peers send in the clear as the last life did:
// what they were promised has to be saved before.
func volatile(msg any) bool {
	_, promise := msg.(TunnelTerms)
	return !promise
}

// Endpoint devices, the hold's and the tunnel's names follow plane.Node.Prefix.
