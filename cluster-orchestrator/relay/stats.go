package relay

import "sync/atomic"

// Count is something that a relay counts.
type Count int

// The counts of a relay. Those from Unknown to Strangers are causes for which it dropped a
// message.
const (
	Datagrams Count = iota // forwarded
	Bytes                  // forwarded, without headers
	Bindings
	Streams   // TLS connections now
	Unknown   // slot does not exist, or has another ticket
	Unbound   // slot without a binding
	Limited   // beyond the slot's rate
	Full      // the node's TLS connection is too slow
	Denied    // to a relay that is in no route
	Failed    // refused by the kernel
	Malformed // not a message of the protocol
	Strangers // bindings that are not authentic
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

// Stats returns the current counts.
func (r *Relay) Stats() (s Stats) {
	for i := range r.n {
		s[i] = r.n[i].Load()
	}
	return s
}
