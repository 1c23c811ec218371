// Package redial computes the wait before a lost connection is dialled again. The simulator's links
// use it too.
package redial

import "time"

// Pace is an exponential back-off from Min to Max. Each wait is drawn from 50 % to 150 % of it, so
// that the clients of a restarted server reconnect at different times.
type Pace struct{ Min, Max time.Duration }

// Hurry is the constant mean wait of a client that must reconnect soon, for example to renew a
// lease.
const Hurry = 200 * time.Millisecond

// Wait returns the wait before the next attempt. attempt is the number of failed attempts
// since the connection was lost; chance is drawn from [0, 1).
func (p Pace) Wait(attempt int, hurry bool, chance float64) time.Duration {
	d := p.Min
	for range attempt {
		if d >= p.Max {
			break
		}
		d *= 2
	}
	d = min(d, p.Max)
	if hurry {
		d = min(d, Hurry)
	}
	return d/2 + time.Duration(chance*float64(d))
}
