package relay

import "sync/atomic"

// Count identifies a counter of a relay.
type Count int

// The counters of a relay. Those from Unknown to Strangers count dropped messages by cause.
const (
	Datagrams Count = iota // forwarded
	Bytes                  // forwarded, without headers
	Bindings
	Streams   // open TLS connections
	Unknown   // the slot does not exist or has another ticket
	Unbound   // the slot has no binding
	Limited   // beyond the rate
	Full      // the node's TLS connection is too slow
	Denied    // to a relay that Options.Allow does not allow
	Failed    // refused by the kernel
	Malformed // not a message of the protocol
	Strangers // binding requests that are not authentic
	counts
)

// Causes names the causes of dropped messages.
var Causes = map[Count]string{
	Unknown: "unknown_slot", Unbound: "unbound", Limited: "rate", Full: "slow_connection", Denied: "denied_relay",
	Failed: "kernel", Malformed: "malformed", Strangers: "unauthentic",
}

// Stats has the counts since a relay's start.
type Stats [counts]int64

type counters [counts]atomic.Int64

func (r *Relay) Stats() (s Stats) {
	for i := range r.n {
		s[i] = r.n[i].Load()
	}
	return s
}
