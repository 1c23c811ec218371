package wire

import (
	"encoding/json"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
)

// Attach asks a netmanager to give a created workload its place on the network:
// PUT /v1/attachments on its unix socket (DELETE /v1/attachments/<instance>/<epoch>
// ends it, POST …/drain has new flows avoid it). The same key again, also with another
// NetNS, ends in the same address.
type Attach struct {
	Key
	NetNS        string               `json:"netns"` // path of the workload's network namespace, "/proc/4711/ns/net"
	Ports        []api.PortMap        `json:"ports,omitempty"`
	BandwidthIn  int64                `json:"bandwidth_in,omitempty"`  // Mbit/s; 0 bounds nothing
	BandwidthOut int64                `json:"bandwidth_out,omitempty"` // Mbit/s
	Access       api.Access           `json:"access"`
	Addresses    api.ServiceAddresses `json:"addresses"`
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
