package wire

import (
	"net/netip"
	"time"
)

// ProbeOrder has a node measure the round trip to a target that is no node, for
// the trilateration of a user (Oakestra paper §3.2.1, Algorithm 2).
type ProbeOrder struct {
	ID     uint64 `json:"id"`     // the cluster's, repeated in the answer
	Target string `json:"target"` // host, or host:port for TCP alone
	// Allow are networks of addresses that may be probed although they are not public.
	// The node resolves the name, and refuses what is neither: nobody scans a private
	// network by way of an SLA.
	Allow []netip.Prefix `json:"allow,omitempty"`
	// Deny are networks that may not be probed, public or not.
	Deny []netip.Prefix `json:"deny,omitempty"`
	Wait time.Duration  `json:"wait"` // give up after
	// For is an opaque name of the tenant, by which nodes divide their probes among
	// tenants. It is empty from clusters of an earlier release.
	For string `json:"for,omitempty"`
}

// Probed answers a ProbeOrder. RTT is the least of several, 0 with an Error.
type Probed struct {
	ID    uint64        `json:"id"`
	RTT   time.Duration `json:"rtt"`
	How   string        `json:"how,omitempty"` // "icmp" or "tcp"
	Error string        `json:"error,omitempty"`
	// Refused says that the policy forbids the target; nobody else need try.
	Refused bool `json:"refused,omitempty"`
}
