// Package redial computes the wait before a lost connection is dialled again. It is
// pure, so that the simulator's links use the same waits.
package redial

import "time"

// Pace is an exponential backoff from Min to Max. Each wait is drawn from 50 % to 150 %
// of it, so that clients that lost one server together do not return together.
type Pace struct{ Min, Max time.Duration }

// Hurry is the constant mean wait of a client in a hurry, such as one with a lease that
// runs.
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
