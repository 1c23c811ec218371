// Package redial says how long to wait before a lost connection is dialled again.
// It is pure, so that the simulator's links wait as the real ones do.
package redial

import "time"

// Pace is how the waits grow: from Min, doubling, to Max. Each wait is drawn from
// half to one and a half of that, so that those who lost one server together come
// back spread out.
type Pace struct{ Min, Max time.Duration }

// Hurry is the mean wait of a client that stands to lose something soon, a lease
// for example: its waits do not grow.
const Hurry = 200 * time.Millisecond

// Wait is the wait before the next attempt. attempt counts those that failed since
// the connection was lost; chance is drawn from [0, 1).
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
