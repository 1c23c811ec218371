package wire

import (
	"encoding/json"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
)

// Attach attaches a created workload to the network: PUT /v1/attachments on the netmanager's unix
// socket. DELETE /v1/attachments/<instance>/<epoch> detaches it, POST …/drain makes it a draining
// backend, PUT …/ready with a ReadyRequest sets whether a Checked one is ready. A repeated request with the same key, even with another NetNS, gets the same address.
type Attach struct {
	Key
	NetNS        string               `json:"netns"` // path of the workload's network namespace: "/proc/4711/ns/net"
	Ports        []api.PortMap        `json:"ports,omitempty"`
	BandwidthIn  int64                `json:"bandwidth_in,omitempty"`  // Mbit/s; 0: not limited
	BandwidthOut int64                `json:"bandwidth_out,omitempty"` // Mbit/s
	Access       api.Access           `json:"access"`
	Addresses    api.ServiceAddresses `json:"addresses"`
	// Checked means that the node engine's health checks decide whether the workload is ready, by
	// PUT …/ready, and not whether it listens.
	Checked bool `json:"checked,omitempty"`
	// Early means that the workload has no process yet: whether it listens is not watched. It is attached
	// again before it starts.
	Early bool `json:"early,omitempty"`
}

// ReadyRequest sets whether a workload with health checks gets new flows.
type ReadyRequest struct {
	Ready bool `json:"ready"`
}

type Attached struct {
	Key
	Address  netip.Addr `json:"address"`   // IPv4
	Address6 netip.Addr `json:"address_6"` // see NetRanges.To6
	MTU      int        `json:"mtu"`
	Ready    bool       `json:"ready,omitempty"`   // it listens, or is ready by its health checks, and is reachable; it may open flows before that
	Checked  bool       `json:"checked,omitempty"` // as in Attach; netmanagers of earlier releases ignore it
	Error    string     `json:"error,omitempty"`   // in Attachments: why it is no longer attached
}

// Attachments answers GET /v1/attachments.
type Attachments struct {
	Items []Attached `json:"items"`
}

// NetReady reports whether a netmanager can attach workloads, or why it cannot.
type NetReady struct {
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
}

// NetEvent is one line of GET /v1/up, a stream that lasts as long as the node engine reads.
// Exactly one field is set. Ready is in the first line and is sent again when it changes.
type NetEvent struct {
	Ready *NetReady       `json:"ready,omitempty"`
	Up    json.RawMessage `json:"up,omitempty"` // a NetUp, which the node engine passes to the cluster unchanged and in order
	// Serves is a workload that has become Attached.Ready. If nobody reads the stream then,
	// Attachments shows it.
	Serves *Key `json:"serves,omitempty"`
}

// NetLink reports whether the node engine is connected to the cluster: POST /v1/link.
type NetLink struct {
	Up bool `json:"up"`
}
