package wire

import (
	"net/netip"
	"time"
)

// ProbeOrder makes a node measure the round trip to a target that is not a node, for the
// trilateration of a user (Oakestra paper §3.2.1, Algorithm 2).
type ProbeOrder struct {
	ID     uint64 `json:"id"`     // chosen by the cluster; repeated in Probed
	Target string `json:"target"` // host, or host:port for TCP only
	// Allow are networks that may be probed although they are not public. The node resolves the
	// name and refuses other private addresses, so that an SLA cannot scan a private network.
	Allow []netip.Prefix `json:"allow,omitempty"`
	// Deny are networks that may not be probed, public or not.
	Deny []netip.Prefix `json:"deny,omitempty"`
	Wait time.Duration  `json:"wait"` // after which the node gives up
	// For is an opaque name of the tenant, for the fair shares of a node's probes. Clusters of
	// earlier releases leave it empty.
	For string `json:"for,omitempty"`
}

// Probed answers a ProbeOrder. RTT is the least of several measurements, or 0 with an Error.
type Probed struct {
	ID    uint64        `json:"id"`
	RTT   time.Duration `json:"rtt"`
	How   string        `json:"how,omitempty"` // "icmp" or "tcp"
	Error string        `json:"error,omitempty"`
	// Refused means that the policy forbids the target; it does so on every node.
	Refused bool `json:"refused,omitempty"`
}
