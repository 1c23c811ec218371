package overlay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/agree"
	"github.com/treeline-edge/treeline/netmanager/overlay/notice"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Input is what can happen to a node's network.
type Input interface{ input() }

type (
	// Start comes first, once, after Restore.
	Start struct{}
	// Tick comes when the Wake of the last step is reached.
	Tick struct{}

	// Self is what the node says of itself: its key, proof and endpoints. It comes
	// after Start and whenever it changes.
	Self struct {
		api.NetSelf
		// OnLink are the networks that the node's devices are directly connected to: a
		// peer's address within one is reached without a router.
		OnLink []netip.Prefix
	}
	// Link says that the way to the cluster (through the node engine) came up or went down.
	Link struct{ Up bool }
	// Down is what the cluster says. Peers in it were verified outside: their keys
	// are their certificates'.
	Down struct{ api.NetDown }

	// Attach gives a workload its address. Refused with ErrUnavailable (no lease
	// yet, or all that is left rests), ErrFull (all addresses are taken), ErrConflict
	// (a host port is). The answer is in Core.Attached after the step.
	Attach struct{ api.Attach }
	// Ready says that the workload in a network namespace listens: new flows to its
	// service may go to it from now on. Of a namespace that it is not in any more it
	// says nothing.
	Ready struct {
		api.Key
		NetNS string
	}
	// Detach takes a workload off the network. Detaching what is not there succeeds.
	Detach struct{ api.Key }
	// Drain has new flows avoid a workload that will be stopped.
	Drain struct{ api.Key }
	// Exited has them avoid a workload whose process, in a network namespace, has ended.
	Exited struct {
		api.Key
		NetNS string
	}

	// Miss is a packet to an address, or from one, that the plane does not know.
	// Local is the endpoint's address on this node that sent it, or that it is for.
	Miss struct {
		Local  netip.Addr
		Remote netip.Addr
	}
	// Query is a name that a workload asked for; Core.Lookup answers. Local is who asked.
	Query struct {
		Local netip.Addr
		Name  string
	}
	// PeerUnknown is a handshake of a key that no record names; Claim is an address of its subnet.
	PeerUnknown struct {
		Key   api.PeerKey
		Claim netip.Addr
	}
	// Path is what the tunnel observes of the way to a peer.
	Path struct {
		Key  api.PeerKey
		Kind api.PathKind // direct, relay, relay-tls or none
		Addr netip.AddrPort
		// Plain says that the peer is seen at the address that it says is its own,
		// and sees us at ours: no NAT lies between.
		Plain bool
		RTT   time.Duration
		Loss  float64
		MTU   int // inner
		// Idle says that nothing has passed for so long that better ways are not looked
		// for: that it is no direct one says nothing of where the peer is.
		Idle bool
		// Silent says that traffic waits and nothing came back for long enough to
		// believe that the peer is dead.
		Silent bool
	}
	// Measured is a round trip to a peer, as good as the last few of the way in use
	// tell.
	Measured struct {
		Key   api.PeerKey
		RTT   time.Duration
		Coord *api.Coordinate // where the peer was at that time; nil: it did not say
	}
	// Session says that a session with a peer began, or replaced one.
	Session struct{ Key api.PeerKey }
	// Noticed is what a peer says of its instances.
	Noticed struct {
		Key api.PeerKey
		notice.Notice
	}
	// Heeded is a peer's confirmation of what it was told.
	Heeded struct {
		Key api.PeerKey
		notice.Ack
	}
	// Stray is a packet of a peer's to an address of this node's subnet where nobody is.
	Stray struct {
		Key     api.PeerKey
		Address netip.Addr
	}
	// Agreed is what a peer says of the kernel's ways that it takes ours in by.
	Agreed struct {
		Key api.PeerKey
		agree.Terms
	}
	// Probed is a peer's question how much of its has come by the kernel's ways.
	Probed struct {
		Key api.PeerKey
		agree.Probe
	}
	// Arrived is a peer's answer to ours.
	Arrived struct {
		Key api.PeerKey
		agree.Arrived
	}
	// Counted is what the plane counted of peers, as plane.Usage has it: the answer to
	// Count. nil: it could not say.
	Counted struct{ Peers map[api.PeerKey][2]uint64 }
	// Sampled is what TCP knows of the instances' connections now.
	Sampled struct{ Flows []Flow }
	// Used is what the plane counted since it was made.
	Used struct{ plane.Usage }
)

func (Start) input()       {}
func (Tick) input()        {}
func (Self) input()        {}
func (Link) input()        {}
func (Down) input()        {}
func (Attach) input()      {}
func (Ready) input()       {}
func (Detach) input()      {}
func (Drain) input()       {}
func (Exited) input()      {}
func (Miss) input()        {}
func (Query) input()       {}
func (PeerUnknown) input() {}
func (Path) input()        {}
func (Measured) input()    {}
func (Session) input()     {}
func (Noticed) input()     {}
func (Heeded) input()      {}
func (Stray) input()       {}
func (Agreed) input()      {}
func (Probed) input()      {}
func (Arrived) input()     {}
func (Counted) input()     {}
func (Sampled) input()     {}
func (Used) input()        {}
