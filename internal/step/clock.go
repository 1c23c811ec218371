package step

import "time"

// pauseSlack is how late a wake-up may be before it counts as a pause.
const pauseSlack = 2 * time.Second

// Clock keeps the time that the process did not run (stopped, starved, its disk
// full) out of a core's reckoning of others' silence: nobody was silent while
// nobody listened. Leases that a core gives only grow by that, so it is safe.
type Clock struct {
	paused time.Duration
	last   time.Time
}

// Observe is now on the clock, which stood still while the process did; next is
// the moment, on the clock, at which the core wanted to be woken.
func (k *Clock) Observe(now, next time.Time) time.Time {
	if !k.last.IsZero() && !next.IsZero() {
		expected := k.Real(next)
		if k.last.After(expected) {
			expected = k.last
		}
		if late := now.Sub(expected); late > pauseSlack {
			k.paused += late
		}
	}
	k.last = now
	return now.Add(-k.paused)
}

// Real is when a moment on the clock comes; the zero time stays zero.
func (k *Clock) Real(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(k.paused)
}
