// Package rollcall decides when a cluster asks its nodes for an extra heartbeat, and which of
// them did not answer. A node that is about to be declared dead may not be the only one that
// is cut off: nodes that were cut off since their last heartbeat still look alive.
package rollcall

import "time"

const (
	// Lead is the time before a node is declared dead at which the others are asked.
	Lead = 500 * time.Millisecond
	// answerWithin is the time to answer. It is less than Lead, so that a recent call for
	// another silent node can be used too.
	answerWithin = Lead / 2
	// counts is the time for which the result of a call is valid.
	counts = 4 * Lead
)

// Roll has the times of the last two calls. The zero value has none.
type Roll struct{ last, before time.Time }

// Call reports whether to ask now, at most once in half a Lead, and records the call.
func (r *Roll) Call(now time.Time) bool {
	if !r.last.IsZero() && now.Sub(r.last) < answerWithin {
		return false
	}
	r.before, r.last = r.last, now
	return true
}

// Missed reports whether a node that was asked did not answer in time; heard is the time
// of its last heartbeat.
func (r *Roll) Missed(heard, now time.Time) bool {
	for _, at := range []time.Time{r.last, r.before} {
		if !at.IsZero() && now.Sub(at) >= answerWithin && now.Sub(at) < counts {
			return heard.Before(at)
		}
	}
	return false
}
