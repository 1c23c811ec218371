package overlay

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/kernelpath"
	"github.com/treeline-edge/treeline/netmanager/overlay/measure"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Flow is the state of an instance's TCP connections to one remote address.
type Flow = measure.Flow

// Input is an event in a node's network.
type Input interface{ apply(*Core) }

type (
	// Start is the first input after Restore. It comes once.
	Start struct{}
	// Tick comes at the Wake of the last step.
	Tick struct{}

	// Self is the node's own key, proof and endpoints. It comes after Start and
	// whenever it changes.
	Self struct {
		wire.NetSelf
		// OnLink are the networks to which the node's devices are directly connected: no
		// router is needed to reach a peer in one of them.
		OnLink []netip.Prefix
	}
	// Link means that the connection to the cluster, through the node engine, came up
	// or went down.
	Link struct{ Up bool }
	// Down is a message of the cluster. Its peers were verified before: their keys are
	// those of their certificates.
	Down struct{ wire.NetDown }

	// Attach gives a workload an address, which View.Attached returns after the step.
	// Errors: ErrUnavailable (no lease yet, or all free addresses are in quarantine),
	// ErrFull (no free address), ErrConflict (a host port is taken, or a newer placement
	// is attached).
	Attach struct{ wire.Attach }
	// Ready means that the workload in a network namespace listens: new flows to its
	// service may go to it. It is ignored if the workload has another namespace now.
	Ready struct {
		wire.Key
		NetNS string
	}
	// SetReady sets whether new flows to its service may go to a workload whose health checks
	// decide that. It is ignored for other workloads.
	SetReady struct {
		wire.Key
		Ready bool
	}
	// Detach removes a workload from the network. It may be attached or not.
	Detach struct{ wire.Key }
	// Drain stops new flows to a workload that will be stopped.
	Drain struct{ wire.Key }
	// Exited is Drain for a workload whose process, in a network namespace, has ended.
	Exited struct {
		wire.Key
		NetNS string
	}

	// Miss is a packet to or from an address that is not in the plane. Local is the endpoint on this node
	// that sends or receives it.
	Miss struct {
		Local  netip.Addr
		Remote netip.Addr
	}
	// Query is the look-up of a name by the endpoint Local. View.Lookup answers it.
	Query struct {
		Local netip.Addr
		Name  string
	}
	// PeerUnknown is a handshake from a key without a record. Claim is an address of the subnet that the
	// sender claims.
	PeerUnknown struct {
		Key   api.PeerKey
		Claim netip.Addr
	}
	// Path is the tunnel's report on the path to a peer.
	Path kernelpath.Path
	// Measured is a round trip to a peer: the least of the last few on the path in use.
	Measured struct {
		Key   api.PeerKey
		RTT   time.Duration
		Coord *api.Coordinate // the peer's coordinate at that time; nil: not known
	}
	// Session means that a session with a peer began, or replaced one.
	Session struct{ Key api.PeerKey }
	// Noticed is a peer's notice about its instances.
	Noticed struct {
		Key api.PeerKey
		peermsg.Notice
	}
	// NoticeAcked is a peer's confirmation of a notice.
	NoticeAcked struct {
		Key api.PeerKey
		peermsg.NoticeAck
	}
	// Stray is a packet from a peer to an address of this node's subnet without an endpoint.
	Stray struct {
		Key     api.PeerKey
		Address netip.Addr
	}
	// Agreed has a peer's terms: the kernel paths on which it accepts this node's packets.
	Agreed struct {
		Key api.PeerKey
		peermsg.Terms
	}
	// Probed is a peer's request for the amount of traffic that arrived on kernel paths.
	Probed struct {
		Key api.PeerKey
		peermsg.TrafficProbe
	}
	// Arrived is a peer's answer to a TrafficProbe.
	Arrived struct {
		Key api.PeerKey
		peermsg.Traffic
	}
	// Counted answers Count with the counters of plane.Usage.Peers. nil: the plane cannot count.
	Counted struct{ Peers map[api.PeerKey][2]uint64 }
	// Sampled has the present state of the instances' TCP connections.
	Sampled struct{ Flows []Flow }
	// Used answers Ask with the plane's counters.
	Used struct{ plane.Usage }
)

func (in Ready) apply(c *Core) {
	if a, ok := c.endpoints.Ready(in.Key, in.NetNS); ok {
		c.setState(a)
	}
}

func (in SetReady) apply(c *Core) {
	if a, ok := c.endpoints.SetReady(in.Key, in.Ready); ok {
		if !in.Ready {
			c.retryUnanswered(a.Address)
		}
		c.setState(a)
	}
}

func (in Drain) apply(c *Core) { c.drain(in.Key) }

func (in Exited) apply(c *Core) {
	// The workload's flows do not end: the kernel still sends data that it has written.
	if a, ok := c.endpoints.Get(in.Key); ok && a.Attach.NetNS == in.NetNS {
		c.drain(in.Key)
	}
}

func (in NoticeAcked) apply(c *Core) {
	if c.peers.Has(in.Key) {
		c.notices.Confirm(in.Key, in.Serial)
	}
}

func (in Agreed) apply(c *Core) {
	if c.peers.Has(in.Key) && in.Key != c.self.Key {
		c.applyKernel(c.kernel.Agreed(c.now, in.Key, in.Terms))
	}
}

func (in Probed) apply(c *Core) { c.applyKernel(c.kernel.Probed(c.now, in.Key, in.Serial)) }

func (in Arrived) apply(c *Core) { c.applyKernel(c.kernel.Arrived(c.now, in.Key, in.Traffic)) }

func (in Counted) apply(c *Core) {
	c.peers.Counted(in.Peers)
	c.applyKernel(c.kernel.Counted(c.now, in.Peers))
}

func (Tick) apply(*Core) {}
