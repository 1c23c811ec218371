package tunnel

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Path is a path to a peer. It is comparable; the zero Path means none.
//
// A relayed datagram comes from an address of the own relay (Lease.Relays). Its path is
// PathRelay with that address and without slot and ticket, because the return path is the peer's
// relay.
type Path struct {
	Kind   api.PathKind   // PathDirect, PathRelay or PathRelayTLS
	Addr   netip.AddrPort // the peer's address, or the relay's; for PathRelayTLS as Hooks.SendTLS needs it
	Slot   uint32         // of the peer at the relay
	Ticket uint64         // for that slot
}

// Hooks are called from the engine's goroutines. They must not block, wait for the engine to
// stop, or keep their arguments. They may call the engine's methods but Stats and Receive,
// which wait for Control and Raw to return. Calls of one hook do not overlap, except of
// SendTLS. A nil hook ignores its calls.
type Hooks struct {
	// Control gets an authenticated payload of SendControl, and the path by which it came.
	// The Addr of a direct path is the source address as seen here.
	Control func(peer api.PeerKey, from Path, payload []byte)
	// Raw gets unauthenticated datagrams whose first byte is RawType or more.
	Raw func(from netip.AddrPort, datagram []byte)
	// SendTLS sends a datagram by a PathRelayTLS. It may drop it.
	SendTLS func(to Path, datagram []byte)
	// Event reports a change.
	Event func(Event)
}

// RawType is the first type of datagram, its first byte, that the engine hands to Hooks.Raw.
const RawType = 0x20

// Event is UnknownPeer, Established, Silent, Heard, Moved, Traffic or Stray.
type Event any

// UnknownPeer reports an initiation with an unknown key. It is kept for 2 s; SetPeer within that
// time answers it. Claim is the first address of the sender's subnet; it is not proven.
type UnknownPeer struct {
	Key   api.PeerKey
	Claim netip.Addr
}

// Established reports a completed handshake with a peer, and the path of its last message.
// RTT is the handshake's if this node started it, otherwise 0.
type Established struct {
	Peer api.PeerKey
	From Path
	RTT  time.Duration
}

// Silent reports that nothing came from a peer during 2 s of sending: the path or the peer is
// dead. The engine starts a handshake over all paths of SetTries. Silent is not repeated
// before Heard.
type Silent struct{ Peer api.PeerKey }

// Heard reports that a silent peer sends again, by that path.
type Heard struct {
	Peer api.PeerKey
	From Path
}

// Moved reports that an authentic packet of a peer came by another path than the one before.
// The engine still sends by the path of SetPath.
type Moved struct {
	Peer api.PeerKey
	From Path
}

// Traffic reports a packet to a peer after at least 10 s without one, or the first.
type Traffic struct{ Peer api.PeerKey }

// Stray reports a packet of the peer to an address of the node's subnet that SetHere does not
// name, at most ten times a second for each peer.
type Stray struct {
	Peer    api.PeerKey
	Address netip.Addr
}
