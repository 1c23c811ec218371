package tunnel

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Path is one way to a peer. It is comparable; the zero Path is none.
//
// What arrives through a relay looks like a datagram of our own relay's address
// (Lease.Relays), and is reported as PathRelay with that address and neither slot
// nor ticket: the way back is the peer's relay, not ours.
type Path struct {
	Kind   api.PathKind   // PathDirect, PathRelay or PathRelayTLS
	Addr   netip.AddrPort // the peer's address, or the relay's; for PathRelayTLS whatever its carrier needs
	Slot   uint32         // of the peer at the relay
	Ticket uint64         // for that slot
}

// Hooks are how an engine speaks to those around it. They are called from its
// goroutines, and must not block, wait for the engine to stop, or keep what they are
// handed; they may call its other methods, but for Stats and Receive, which wait for
// Control and Raw to return. Calls of one hook follow one another, except of
// SendTLS. A nil hook drops what it would get.
type Hooks struct {
	// Control gets what a peer sent with SendControl, authenticated, and the path by
	// which it came. A Direct path's Addr is where it was sent from, as seen here.
	Control func(peer api.PeerKey, from Path, payload []byte)
	// Raw gets datagrams whose first byte is RawType or more, from whoever sent them.
	Raw func(from netip.AddrPort, datagram []byte)
	// SendTLS carries a datagram to the slot of a PathRelayTLS. It may drop it.
	SendTLS func(to Path, datagram []byte)
	// Event tells of a change.
	Event func(Event)
}

// RawType is the first of the types of datagram (their first byte) that the
// engine hands through: they belong to those who find and keep paths.
const RawType = 0x20

// Event is UnknownPeer, Established, Silent, Heard, Moved, Traffic or Stray.
type Event interface{ event() }

// UnknownPeer says that a well-formed initiation came whose key we do not know.
// It is held for 2 s: SetPeer within that time answers it. Claim is the first
// address of the subnet that the stranger says is its own; nothing proves it.
type UnknownPeer struct {
	Key   api.PeerKey
	Claim netip.Addr
}

// Established says that a handshake with a peer is done, and which way its last
// message came. RTT is that of the handshake where we began it, else 0.
type Established struct {
	Peer api.PeerKey
	From Path
	RTT  time.Duration
}

// Silent says that we have sent to a peer for 2 s and heard nothing: the path is
// dead, or the peer is. The engine begins a handshake over all of SetTries.
// It comes once until the peer is heard again, which Heard says.
type Silent struct{ Peer api.PeerKey }

// Heard says that a silent peer is heard again, by that path.
type Heard struct {
	Peer api.PeerKey
	From Path
}

// Moved says that an authentic packet of a peer came from elsewhere than the one
// before. The engine goes on sending where SetPath says.
type Moved struct {
	Peer api.PeerKey
	From Path
}

// Traffic says that there is something to send to a peer after at least 10 s
// without, or for the first time.
type Traffic struct{ Peer api.PeerKey }

// Stray says that a packet of the peer came for an address of our subnet that
// SetHere does not name, at most ten times a second for each peer.
type Stray struct {
	Peer    api.PeerKey
	Address netip.Addr
}

func (UnknownPeer) event() {}
func (Established) event() {}
func (Silent) event()      {}
func (Heard) event()       {}
func (Moved) event()       {}
func (Traffic) event()     {}
func (Stray) event()       {}
