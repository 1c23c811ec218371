package api

import (
	"encoding/json"
	"net/netip"
	"time"
)

// Attach asks a netmanager to give a created workload its place on the network:
// PUT /v1/attachments on its unix socket (DELETE /v1/attachments/<instance>/<epoch>
// ends it, POST …/drain has new flows avoid it). The same key again, also with another
// NetNS, ends in the same address.
type Attach struct {
	Key
	NetNS        string           `json:"netns"` // path of the workload's network namespace, "/proc/4711/ns/net"
	Ports        []PortMap        `json:"ports,omitempty"`
	BandwidthIn  int64            `json:"bandwidth_in,omitempty"`  // Mbit/s; 0 bounds nothing
	BandwidthOut int64            `json:"bandwidth_out,omitempty"` // Mbit/s
	Access       Access           `json:"access"`
	Addresses    ServiceAddresses `json:"addresses"`
}

// Attached is the answer: what the workload has now.
type Attached struct {
	Key
	Address  netip.Addr `json:"address"`   // IPv4
	Address6 netip.Addr `json:"address_6"` // its twin
	MTU      int        `json:"mtu"`
	Ready    bool       `json:"ready,omitempty"` // it listens, and others' flows come to it; its own need not wait
	Error    string     `json:"error,omitempty"` // in a list: why it is not attached any more
}

// Attachments answers GET /v1/attachments.
type Attachments struct {
	Items []Attached `json:"items"`
}

// NetReady says whether a netmanager attaches workloads, and why not.
type NetReady struct {
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
}

// NetEvent is one line of GET /v1/up, which a netmanager writes for as long as
// its node engine reads. Exactly one field is set: the first line, and each
// change after it, says whether it is ready.
type NetEvent struct {
	Ready *NetReady       `json:"ready,omitempty"`
	Up    json.RawMessage `json:"up,omitempty"` // a NetUp for the cluster, which the node engine hands on as it is, in order
	// Serves is a workload that is Attached.Ready since. One that became so while
	// nobody read is found in the list.
	Serves *Key `json:"serves,omitempty"`
}

// NetLink tells a netmanager whether its node engine reaches the cluster: POST /v1/link.
type NetLink struct {
	Up bool `json:"up"`
}

// PortMap publishes a port of an instance on its node.
type PortMap struct {
	Host     uint16 `json:"host"`
	Instance uint16 `json:"instance"`
	Protocol string `json:"protocol"` // "tcp", "udp" or "sctp"
}

// NetStatus is what a netmanager says of itself: GET /v1/status.
type NetStatus struct {
	Ready   bool             `json:"ready"` // it has a lease, and attaches
	Error   string           `json:"error,omitempty"`
	Node    NodeID           `json:"node,omitempty"`
	Cluster ClusterID        `json:"cluster,omitempty"`
	Key     PeerKey          `json:"key"`
	Subnet  netip.Prefix     `json:"subnet,omitzero"`
	Plane   string           `json:"plane"`            // "ebpf" or "nft"
	Listen  netip.AddrPort   `json:"listen"`           // the tunnel's UDP socket
	Mapped  []netip.AddrPort `json:"mapped,omitempty"` // as the relay saw it
}

// PathKind is how packets travel to a peer.
type PathKind string

// The kinds of path. Route and VXLAN stay in the kernel and are not encrypted;
// the others are encrypted end to end.
const (
	PathNone     PathKind = "none"      // nothing is known to work
	PathRoute    PathKind = "route"     // plain routes, on one link
	PathVXLAN    PathKind = "vxlan"     // within a clear network
	PathDirect   PathKind = "direct"    // the tunnel, node to node
	PathRelay    PathKind = "relay"     // the tunnel through the peer's cluster's relay
	PathRelayTLS PathKind = "relay-tls" // the same, where UDP is blocked
)

// PeerStatus is what a node observes of a peer: GET /v1/peers.
type PeerStatus struct {
	Key      PeerKey        `json:"key"`
	Node     NodeID         `json:"node,omitempty"`
	Cluster  ClusterID      `json:"cluster,omitempty"`
	Path     PathKind       `json:"path"`
	Reason   string         `json:"reason,omitempty"` // why it is no better one
	Endpoint netip.AddrPort `json:"endpoint,omitzero"`
	// RTT and Loss are of probes in the session of both nodes' tunnels, also where packets
	// take a kernel path: every ten seconds or so while packets pass, by the way that the
	// tunnel has. RTT is smoothed over about eight of them; 0: none was answered yet.
	// Loss is of about as many, 0 to 1, lost on the way there or back.
	RTT      time.Duration `json:"rtt_ns,omitempty"`
	Loss     float64       `json:"loss"`
	Measured time.Time     `json:"measured,omitzero"` // when a probe told of a round trip last
	MTU      int           `json:"mtu,omitempty"`
	// Tunnel and Kernel are the bytes of packets, with their headers, that each carried,
	// since the netmanager's start at the latest. Kernel is nil where nothing has gone by a
	// kernel path, or what has is not known.
	Tunnel    Carried   `json:"tunnel"`
	Kernel    *Carried  `json:"kernel,omitempty"`
	Dropped   uint64    `json:"dropped_packets"` // by the tunnel
	Handshake time.Time `json:"handshake,omitzero"`
}

// Carried are bytes of packets to a peer and from it.
type Carried struct {
	Sent     uint64 `json:"sent_bytes"`
	Received uint64 `json:"received_bytes"`
}

// Carried are the bytes that passed, by whatever path; ok says whether all of them
// are known.
func (p PeerStatus) Carried() (c Carried, ok bool) {
	if p.Kernel == nil {
		return p.Tunnel, p.Path != PathRoute && p.Path != PathVXLAN
	}
	return Carried{p.Tunnel.Sent + p.Kernel.Sent, p.Tunnel.Received + p.Kernel.Received}, true
}

// RouteStatus is what a node holds of a service: GET /v1/routes.
type RouteStatus struct {
	Route
	Chosen  map[string]int           `json:"chosen,omitempty"`     // closest: flows now go to these instances
	Latency map[string]time.Duration `json:"latency_ns,omitempty"` // by instance: how far its node is
	Pairs   []PairStatus             `json:"pairs,omitempty"`      // with services of this node
	Idle    time.Duration            `json:"idle_ns"`
	Refused string                   `json:"refused,omitempty"`
}

// PairStatus is what TCP has measured of the connections between a service of this
// node and another one, whichever called: what those who use them wait for the
// network, with both ends' kernels and what bounds their bandwidth.
type PairStatus struct {
	Local       ServiceID     `json:"local"`
	Remote      ServiceID     `json:"remote"`
	RTT         time.Duration `json:"rtt_ns"`       // smoothed, with what waits in queues and for late acknowledgements
	Least       time.Duration `json:"least_rtt_ns"` // of any connection in the last minutes: the distance
	Again       float64       `json:"again"`        // share of segments that were sent again, 0 to 1
	Connections int           `json:"connections"`  // that were looked at
	Seen        time.Time     `json:"seen"`         // when
}

// NetTrace answers GET /v1/trace?from=<instance>&to=<name or address>: what would
// happen to a new flow, step by step.
type NetTrace struct {
	From  InstanceID  `json:"from"`
	To    string      `json:"to"`
	Steps []TraceStep `json:"steps"`
	OK    bool        `json:"ok"`
}

// TraceStep is one line of a trace.
type TraceStep struct {
	What   string `json:"what"` // "name", "route", "access", "latency", "backend", "path", "reply"
	Detail string `json:"detail"`
	OK     bool   `json:"ok"`
}
