// Package rollcall decides when a cluster asks its nodes for a sign of life out of
// turn, and which of them did not answer. A node that is about to be declared dead
// may not be the only one that is cut off: between two beats the others look alive
// for up to a beat longer than they are.
package rollcall

import "time"

const (
	// Lead is how long before a node is declared dead the others are asked.
	Lead = 500 * time.Millisecond
	// answerWithin is how long a node has to answer; it is less than Lead, so that a
	// call that another node's silence began just before counts too.
	answerWithin = Lead / 2
	// counts is for how long a call tells who is there.
	counts = 4 * Lead
)

// Roll remembers the last two calls. The zero value has made none.
type Roll struct{ last, before time.Time }

// Call reports whether to ask now, and notes it: at most once in half a Lead,
// however many nodes fall silent.
func (r *Roll) Call(now time.Time) bool {
	if !r.last.IsZero() && now.Sub(r.last) < answerWithin {
		return false
	}
	r.before, r.last = r.last, now
	return true
}

// Missed reports whether a node that was asked and heard last at heard did not
// answer in time.
func (r *Roll) Missed(heard, now time.Time) bool {
	for _, at := range []time.Time{r.last, r.before} {
		if !at.IsZero() && now.Sub(at) >= answerWithin && now.Sub(at) < counts {
			return heard.Before(at)
		}
	}
	return false
}
