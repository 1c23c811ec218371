// Package plane says what the overlay's core wants of the kernel: which
// addresses are whose, who may call whom, which backends stand behind a semantic
// address, and how peers are reached. It holds plain values and decides nothing;
// netmanager/dataplane and netmanager/link make them true.
//
// All addresses are IPv4; each stands for its IPv6 twin too (api.NetRanges).
//
//	change := plane.Change{SetServices: []plane.Service{{Address: vip, Ident: 7, Backends: backends}}}
package plane

import (
	"encoding/hex"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
)

// Ident stands for a service within one node's plane. 0 is nobody. It is given
// by the core, kept over restarts, and means nothing on another node.
type Ident uint32

// State is all that a plane should hold.
type State struct {
	Node      Node
	Endpoints []Endpoint
	Services  []Service
	Sources   []Source
	Allowed   []Pair
	Peers     []Peer
}

// Change is a step from one state to another. It is applied as one transaction:
// drops first, then sets; a set replaces what has the same key. Dropping what is
// not there succeeds.
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
	// End ends the flows that go to these instance addresses: the backend is dead,
	// and who talks to it shall notice now. Flows of others are untouched. Retry ends
	// those alone that nobody has answered yet, of TCP: whether the backend is dead is not
	// known. Who waits for such an answer is told nothing by either. It tries again by
	// itself, after a second at first, and goes then where new flows go.
	End, Retry []netip.Addr
}

// Node is what holds for the whole plane.
type Node struct {
	Ranges api.NetRanges
	Subnet netip.Prefix // of this node; zero: no lease yet
	Prefix string       // begins the names of all devices, tables and rules of ours: "tl"
	Tunnel string       // device that tunnelled peers are behind
	Hold   string       // device that packets go to of which the plane does not know the way
	VXLAN  uint16       // UDP port of the VXLAN device, 0: none
	// Closed are networks that instances may not reach, beside the host's own
	// addresses and the networks that it is directly connected to, which they never
	// reach; Open are exceptions from both. All else outside the ranges is reached
	// with the host's address (masquerade).
	Closed, Open []netip.Prefix
}

// Endpoint is an instance on this node. Its key is its address.
type Endpoint struct {
	Address netip.Addr
	Ident   Ident
	Device  string // the host's end of its veth pair
	Ports   []api.PortMap
}

// Service is a semantic address. Its key is that address; a service with two
// policies is two of them. New flows go to the backends in turn, in proportion to
// their weights. No backend: new flows are refused at once (TCP reset, ICMP
// unreachable), so that clients fail fast.
type Service struct {
	Address  netip.Addr
	Ident    Ident
	Backends []Backend
}

// Backend takes Weight of every sum of weights new flows. Weight is 1 to 16.
type Backend struct {
	Address netip.Addr
	Weight  int
}

// Source is a remote instance's address and whose it is. Its key is the address.
type Source struct {
	Address netip.Addr
	Ident   Ident
}

// Pair allows flows from one service to another; answers are always allowed.
type Pair struct{ From, To Ident }

// Peer is a node and the way to it. Its key is Key.
type Peer struct {
	Key     api.PeerKey
	Subnets []netip.Prefix
	Path    api.PathKind // that ours take: route or vxlan; anything else is the tunnel device
	// Via is the peer's address on the clear network, for route and vxlan, there and back.
	Via netip.Addr
	// Takes are the ways from Via that packets of its subnets are taken in by. They are
	// always taken in from the tunnel, which has checked whose they are; from no other way.
	Takes Ways
	MTU   int // of inner packets; larger ones are answered with ICMP. 0: the device's
}

// Ways are the kernel's ways between two nodes, any of which may be taken at a time.
type Ways struct {
	Route bool `json:"route,omitempty"`
	VXLAN bool `json:"vxlan,omitempty"`
}

// Or are the ways of both.
func (w Ways) Or(o Ways) Ways { return Ways{w.Route || o.Route, w.VXLAN || o.VXLAN} }

// Usage says what was used since the plane was made; counters only grow. What is
// dropped from the plane is forgotten: it counts from 0 if it comes again.
type Usage struct {
	Services map[netip.Addr]uint64     // new flows, by semantic address
	Backends map[netip.Addr]uint64     // new flows, by backend's address
	Sources  map[netip.Addr]uint64     // packets from remote instances, answers too: a long flow counts as use
	Peers    map[api.PeerKey][2]uint64 // bytes to and from, where the kernel carries them; else absent
	Denied   uint64                    // packets that policy dropped
	Forged   uint64                    // packets whose source was not the sender's
}

// VXLANDevice is the name of the VXLAN device, where Node.VXLAN asks for one.
func VXLANDevice(prefix string) string { return prefix + "vxlan" }

// Device is the name of the host's end of an endpoint's veth pair.
func Device(prefix string, a netip.Addr) string {
	b := a.As4()
	return prefix + hex.EncodeToString(b[:])
}
