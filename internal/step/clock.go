package step

import "time"

// pauseSlack is the delay of a wake-up above which it counts as a pause.
const pauseSlack = 2 * time.Second

// Clock is a core's clock that excludes pauses of the process (stopped, starved, its disk full),
// so that a core does not take its own pause for the silence of others. Leases that the core
// grants get longer by a pause, which is safe.
type Clock struct {
	paused time.Duration
	last   time.Time
}

// Observe returns now on the clock. next is when the core wanted to be woken, on the clock.
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
