package tunnel

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Path is a path to a peer. It is comparable; the zero Path means none.
//
// A relayed datagram comes from an address of this node's own relay (Lease.Relays). Its path is PathRelay
// with that address, without slot and ticket, because answers go through the peer's relay.
type Path struct {
	Kind   api.PathKind   // PathDirect, PathRelay or PathRelayTLS
	Addr   netip.AddrPort // the peer's address, or the relay's; for PathRelayTLS as Hooks.SendTLS needs it
	Slot   uint32         // of the peer at the relay
	Ticket uint64         // for that slot
}

// Hooks are called from the engine's goroutines. They must not block, wait for the engine to stop, or
// keep their arguments. They may call the engine's methods except Stats and Receive, which wait for
// Control and Raw to return. Calls of one hook do not overlap, except those of SendTLS. A hook may be
// nil.
type Hooks struct {
	// Control receives an authenticated payload of SendControl and the path by which it came. For a
	// direct path, from.Addr is the source address that this node sees.
	Control func(peer api.PeerKey, from Path, payload []byte)
	// Raw receives unauthenticated datagrams whose first byte is RawType or more.
	Raw func(from netip.AddrPort, datagram []byte)
	// SendTLS sends a datagram on a PathRelayTLS. It may drop it.
	SendTLS func(to Path, datagram []byte)
	// Event reports a change.
	Event func(Event)
}

// RawType is the lowest datagram type (first byte) that the engine passes to Hooks.Raw.
const RawType = 0x20

// Event is UnknownPeer, Established, Silent, Recovered, Moved, Traffic or Stray.
type Event any

// UnknownPeer reports an initiation with an unknown key. The engine keeps it for 2 s, and answers it if
// SetPeer adds the peer in that time. Claim is the first address of the sender's subnet. It is not
// authenticated.
type UnknownPeer struct {
	Key   api.PeerKey
	Claim netip.Addr
}

// Established reports a completed handshake with a peer, and the path of its last message. RTT is the
// round trip of the handshake if this node started it, otherwise 0.
type Established struct {
	Peer api.PeerKey
	From Path
	RTT  time.Duration
}

// Silent reports that nothing came from a peer for 1.5 s and two round trips after data was sent, or that
// a handshake failed: the path or the peer is dead. The engine starts a handshake on all paths of
// SetTries. Silent is not repeated before Recovered.
type Silent struct{ Peer api.PeerKey }

// Recovered reports that a silent peer sends again, and on which path.
type Recovered struct {
	Peer api.PeerKey
	From Path
}

// Moved reports that an authentic packet of a peer came on another path than the one before. The engine
// still sends on the path of SetPath.
type Moved struct {
	Peer api.PeerKey
	From Path
}

// Traffic reports the first packet to a peer, or the first after at least 10 s without one.
type Traffic struct{ Peer api.PeerKey }

// Stray reports a packet from a peer to an address in the node's subnet that SetLocal does not list. It is
// posted at most ten times a second per peer.
type Stray struct {
	Peer    api.PeerKey
	Address netip.Addr
}
