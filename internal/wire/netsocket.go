package wire

import (
	"encoding/json"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
)

// Attach attaches a created workload to the network: PUT /v1/attachments on the netmanager's unix
// socket. DELETE /v1/attachments/<instance>/<epoch> detaches it, POST …/drain makes new flows
// avoid it. The same key again, also with another NetNS, results in the same address.
type Attach struct {
	Key
	NetNS        string               `json:"netns"` // path of the workload's network namespace: "/proc/4711/ns/net"
	Ports        []api.PortMap        `json:"ports,omitempty"`
	BandwidthIn  int64                `json:"bandwidth_in,omitempty"`  // Mbit/s; 0: not limited
	BandwidthOut int64                `json:"bandwidth_out,omitempty"` // Mbit/s
	Access       api.Access           `json:"access"`
	Addresses    api.ServiceAddresses `json:"addresses"`
}

// Attached answers Attach.
type Attached struct {
	Key
	Address  netip.Addr `json:"address"`   // IPv4
	Address6 netip.Addr `json:"address_6"` // its twin
	MTU      int        `json:"mtu"`
	Ready    bool       `json:"ready,omitempty"` // it listens, and flows of others can reach it; its own need not wait
	Error    string     `json:"error,omitempty"` // in Attachments: why it is not attached any more
}

// Attachments answers GET /v1/attachments.
type Attachments struct {
	Items []Attached `json:"items"`
}

// NetReady is whether a netmanager can attach workloads, or why it cannot.
type NetReady struct {
	Ready bool   `json:"ready"`
	Error string `json:"error,omitempty"`
}

// NetEvent is one line of GET /v1/up, a stream that lasts as long as the node engine reads.
// Exactly one field is set. The first line has Ready, as has each change of it.
type NetEvent struct {
	Ready *NetReady       `json:"ready,omitempty"`
	Up    json.RawMessage `json:"up,omitempty"` // a NetUp, which the node engine passes to the cluster unchanged and in order
	// Serves is a workload that has become Attached.Ready. One that did so while nobody read the
	// stream is Ready in Attachments.
	Serves *Key `json:"serves,omitempty"`
}

// NetLink is whether the node engine is connected to the cluster: POST /v1/link.
type NetLink struct {
	Up bool `json:"up"`
}
