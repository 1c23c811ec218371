package step

import "time"

// pauseSlack is the delay of a wake-up above which it counts as a pause.
const pauseSlack = 2 * time.Second

// Clock excludes the time in which the process did not run (stopped, starved, its disk full)
// from a core's measure of silence: while nobody listens, nobody is silent. Leases that a core
// grants only get longer by it, which is safe.
type Clock struct {
	paused time.Duration
	last   time.Time
}

// Observe returns now on the clock. next is when, on the clock, the core wanted to be woken.
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

// Real converts a time on the clock to real time; the zero time stays zero.
func (k *Clock) Real(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.Add(k.paused)
}
