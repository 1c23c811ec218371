// Package rollcall decides when a cluster requests an extra heartbeat of its nodes, and which
// of them did not answer. When a node is about to be declared dead, others may be cut off too:
// they look alive until their next heartbeat is overdue.
package rollcall

import "time"

const (
	// Lead is how long before a node is declared dead the roll call takes place.
	Lead = 500 * time.Millisecond
	// answerWithin is the time to answer. It is less than Lead, so that one call can serve
	// several silent nodes.
	answerWithin = Lead / 2
	// counts is how long the result of a call is valid.
	counts = 4 * Lead
)

// Roll has the times of the last two calls. The zero Roll has none.
type Roll struct{ last, before time.Time }

// Call reports whether to make a call now, and records it. It returns false within half a
// Lead after the last call.
func (r *Roll) Call(now time.Time) bool {
	if !r.last.IsZero() && now.Sub(r.last) < answerWithin {
		return false
	}
	r.before, r.last = r.last, now
	return true
}

// Missed reports whether a node did not answer a valid call in time. heard is the time of its
// last heartbeat.
func (r *Roll) Missed(heard, now time.Time) bool {
	for _, at := range []time.Time{r.last, r.before} {
		if !at.IsZero() && now.Sub(at) >= answerWithin && now.Sub(at) < counts {
			return heard.Before(at)
		}
	}
	return false
}
