package api

import (
	"net/netip"
	"time"
)

// PortMap publishes a port of an instance on its node.
type PortMap struct {
	Host     uint16 `json:"host"`
	Instance uint16 `json:"instance"`
	Protocol string `json:"protocol"` // "tcp", "udp" or "sctp"
}

// NodeRoute is a GET route that a node's netmanager answers. The cluster serves it below
// /v1/nodes/{id}, and the root below /v1/clusters/{id}/nodes/{node}. Both forward the request and
// check the right to read nodes.
type NodeRoute struct {
	ID          string     // of the operation, in the cluster's OpenAPI document
	Path        string     // below the node's path
	Netmanager  string     // path at the netmanager's socket
	Summary     string     // for the OpenAPI documents
	Description string     // for the OpenAPI documents
	New         func() any // returns a pointer to an empty answer
}

// NodeRoutes lists the routes that netmanagers answer. A netmanager streams the items of
// a Page.
var NodeRoutes = []NodeRoute{
	{"nodeNet", "/net", "/v1/status", "Get a node's part in the network", "", func() any { return new(NetStatus) }},
	{"nodeRoutes", "/net/routes", "/v1/routes", "List a node's routes to services", "", func() any { return new(Page[RouteStatus]) }},
	{
		"nodePeers", "/net/peers", "/v1/peers", "List a node's peers",
		"The nodes that it exchanges packets with, the path to each, and why no better path is used.", func() any { return new(Page[PeerStatus]) },
	},
}

type NetStatus struct {
	Ready   bool             `json:"ready"` // it has a subnet and accepts workloads
	Error   string           `json:"error,omitempty"`
	Node    NodeID           `json:"node,omitempty"`
	Cluster ClusterID        `json:"cluster,omitempty"`
	Key     PeerKey          `json:"key"`
	Subnet  netip.Prefix     `json:"subnet,omitzero"`
	Plane   string           `json:"plane"`            // "ebpf" or "nft"
	Listen  netip.AddrPort   `json:"listen"`           // the tunnel's UDP socket
	Mapped  []netip.AddrPort `json:"mapped,omitempty"` // the address that the relay observed
}

// PathKind is how packets get to a peer.
type PathKind string

// The kinds of paths. Route and VXLAN stay in the kernel and are not encrypted; the others are
// encrypted end to end.
const (
	PathNone     PathKind = "none"      // no working path is known
	PathRoute    PathKind = "route"     // plain routes on a common link
	PathVXLAN    PathKind = "vxlan"     // within an unencrypted network
	PathDirect   PathKind = "direct"    // the tunnel, node to node
	PathRelay    PathKind = "relay"     // the tunnel through the relay of the peer's cluster
	PathRelayTLS PathKind = "relay-tls" // the same, where UDP is blocked
)

// PeerStatus is what a node observes of a peer.
type PeerStatus struct {
	Key      PeerKey        `json:"key"`
	Node     NodeID         `json:"node,omitempty"`
	Cluster  ClusterID      `json:"cluster,omitempty"`
	Path     PathKind       `json:"path"`
	Reason   string         `json:"reason,omitempty"` // why no better path is used
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	// RTT and Loss are measured by probes through the tunnel session of both nodes, even if packets
	// take a kernel path: about every ten seconds while packets pass. RTT is smoothed over about
	// eight probes; 0: none was answered yet. Loss is measured over about as many, 0 to 1, in both
	// directions.
	RTT      time.Duration `json:"rtt_ns,omitempty"`
	Loss     float64       `json:"loss"`
	Measured time.Time     `json:"measured,omitzero"` // time of the last answered probe
	MTU      int           `json:"mtu,omitempty"`
	// Tunnel and Kernel count the bytes of packets including their headers, at least since the
	// netmanager's start. Kernel is nil if no packet took a kernel path, or if it is unknown.
	Tunnel    Carried   `json:"tunnel"`
	Kernel    *Carried  `json:"kernel,omitempty"`
	Dropped   uint64    `json:"dropped_packets"` // by the tunnel
	Handshake time.Time `json:"handshake,omitzero"`
}

// Carried counts bytes of packets to a peer and from it.
type Carried struct {
	Sent     uint64 `json:"sent_bytes"`
	Received uint64 `json:"received_bytes"`
}

// Carried returns the bytes by all paths; ok reports whether all are known.
func (p PeerStatus) Carried() (c Carried, ok bool) {
	if p.Kernel == nil {
		return p.Tunnel, p.Path != PathRoute && p.Path != PathVXLAN
	}
	return Carried{p.Tunnel.Sent + p.Kernel.Sent, p.Tunnel.Received + p.Kernel.Received}, true
}

// RouteStatus is a node's route to a service.
type RouteStatus struct {
	Route
	Chosen  map[string]int           `json:"chosen,omitempty"`     // by closest address: instances for new flows
	Latency map[string]time.Duration `json:"latency_ns,omitempty"` // by instance: round trip to its node
	Pairs   []PairStatus             `json:"pairs,omitempty"`      // with services of this node
	Idle    time.Duration            `json:"idle_ns"`
	Refused string                   `json:"refused,omitempty"`
}

// PairStatus has TCP's measurements on connections between a service of this node and another one,
// in either direction.
type PairStatus struct {
	Local       ServiceID     `json:"local"`
	Remote      ServiceID     `json:"remote"`
	RTT         time.Duration `json:"rtt_ns"`       // smoothed; includes queues and delayed acknowledgements
	Least       time.Duration `json:"least_rtt_ns"` // minimum of all connections in the last minutes
	Again       float64       `json:"again"`        // share of retransmitted segments, 0 to 1
	Connections int           `json:"connections"`  // number of measured connections
	Seen        time.Time     `json:"seen"`         // time of the last measurement
}

// NetTrace answers GET /v1/trace?from=<instance>&to=<name or address>: what would happen to a
// new flow, step by step.
type NetTrace struct {
	From  InstanceID  `json:"from"`
	To    string      `json:"to"`
	Steps []TraceStep `json:"steps"`
	OK    bool        `json:"ok"`
}

type TraceStep struct {
	What   string `json:"what"` // "name", "route", "access", "latency", "backend", "path", "reply"
	Detail string `json:"detail"`
	OK     bool   `json:"ok"`
}
