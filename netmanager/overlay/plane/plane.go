// Package plane defines the desired configuration of the data plane: the service of each address, which
// services may call each other, the backends of each semantic address, and the paths to peers. It has
// plain values; netmanager/dataplane and netmanager/link apply them.
//
// All addresses are IPv4. Each stands for the IPv6 address that contains it too (wire.NetRanges.To6).
//
//	change := plane.Change{SetServices: []plane.Service{{Address: vip, Ident: 7, Backends: backends}}}
package plane

import (
	"encoding/hex"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Ident identifies a service within one node's plane. 0 is no service. The core allocates it and keeps it
// across restarts.
type Ident uint32

// State is the full contents of a plane.
type State struct {
	Node      Node
	Endpoints []Endpoint
	Services  []Service
	Sources   []Source
	Allowed   []Pair
	Peers     []Peer
}

// Change is the difference between two states. It is applied as one transaction: drops first, then sets.
// A set replaces the value with the same key. Dropping a key that does not exist succeeds.
type Change struct {
	Node          *Node
	DropEndpoints []netip.Addr
	DropServices  []netip.Addr
	DropSources   []netip.Addr
	Deny          []Pair
	DropPeers     []api.PeerKey
	SetEndpoints  []Endpoint
	SetServices   []Service
	SetSources    []Source
	Allow         []Pair
	SetPeers      []Peer
	// End ends the flows to these instance addresses: the backend is dead, and its clients should notice
	// now. Retry ends only TCP flows that were not answered yet, because the backend may be alive. Their
	// clients are not informed: they retransmit, first after a second, and reach a backend that accepts
	// new flows.
	End, Retry []netip.Addr
}

// Node configures the plane as a whole.
type Node struct {
	Ranges wire.NetRanges
	Subnet netip.Prefix // of this node; zero: no lease yet
	Prefix string       // begins the names of all devices, tables and rules: "tl"
	Tunnel string       // device of the tunnel
	Queue  string       // device of the packet queue, for packets to or from unknown addresses
	VXLAN  uint16       // UDP port of the VXLAN device, 0: none
	// Closed are networks that instances may not reach, in addition to the host's own addresses and the
	// networks to which it is directly connected. Open are exceptions from both. Flows to all other
	// addresses outside the ranges leave with the host's address (masquerade).
	Closed, Open []netip.Prefix
}

// Endpoint is an instance on this node. Its key is its address.
type Endpoint struct {
	Address netip.Addr
	Ident   Ident
	Device  string // the host's end of its veth pair
	Ports   []api.PortMap
}

// Service is a semantic address, which is its key. A service has one per policy. New flows go to the
// backends in turn, in proportion to their weights. Without a backend, new flows are refused at once (TCP
// reset, ICMP unreachable), so that clients fail fast.
type Service struct {
	Address  netip.Addr
	Ident    Ident
	Backends []Backend
}

// Backend receives Weight new flows out of the sum of all weights. Weight is 1 to 16.
type Backend struct {
	Address netip.Addr
	Weight  int
}

// Source is a remote instance's address and its service. Its key is the address.
type Source struct {
	Address netip.Addr
	Ident   Ident
}

// Pair allows flows from one service to another. Answers are always allowed.
type Pair struct{ From, To Ident }

// Peer is a node and the path to it. Its key is Key.
type Peer struct {
	Key     api.PeerKey
	Subnets []netip.Prefix
	Path    api.PathKind // for packets to the peer: route or vxlan; anything else is the tunnel device
	// Via is the peer's address on the unencrypted network, for route and vxlan in both
	// directions.
	Via netip.Addr
	// Accepts are the kernel paths from Via on which packets of the peer's subnets are accepted. Packets
	// from the tunnel, which authenticates them, are always accepted.
	Accepts Paths
	MTU     int // of inner packets; larger ones are answered with ICMP. 0: that of the device
}

// Paths are kernel paths between two nodes.
type Paths struct {
	Route bool `json:"route,omitempty"`
	VXLAN bool `json:"vxlan,omitempty"`
}

// Or returns the paths in p or o.
func (p Paths) Or(o Paths) Paths { return Paths{p.Route || o.Route, p.VXLAN || o.VXLAN} }

// Usage has counters since the plane was made. A counter restarts at 0 if its key is dropped and set
// again.
type Usage struct {
	Services map[netip.Addr]uint64     // new flows, by semantic address
	Backends map[netip.Addr]uint64     // new flows, by backend's address
	Sources  map[netip.Addr]uint64     // packets from remote instances, answers included
	Peers    map[api.PeerKey][2]uint64 // bytes sent and received by kernel path; peers without one are absent
	Denied   uint64                    // packets that the access policy dropped
	Forged   uint64                    // packets with a source address that the sender may not use
}

// VXLANDevice returns the name of the VXLAN device, which exists if Node.VXLAN is set.
func VXLANDevice(prefix string) string { return prefix + "vxlan" }

// Device returns the name of the host's end of an endpoint's veth pair.
func Device(prefix string, a netip.Addr) string {
	b := a.As4()
	return prefix + hex.EncodeToString(b[:])
}
