package client

import (
	"sync"
	"time"
)

// breaker is a circuit breaker. After maxFailures failures in a row, the scheduler is not
// asked for a pause, so that placements do not wait for their deadlines. After the pause, one
// question is let through. The zero breaker is closed: questions pass.
type breaker struct {
	mu       sync.Mutex // guards the fields below
	failures int        // consecutive
	until    time.Time  // end of the pause
}

const (
	maxFailures = 3
	minPause    = 5 * time.Second
	maxPause    = 5 * time.Minute
)

// allow returns 0 if the caller may ask, otherwise the rest of the pause. After a pause, one
// caller may ask; for the others, a new pause begins.
func (b *breaker) allow(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.failures < maxFailures {
		return 0
	}
	if wait := b.until.Sub(now); wait > 0 {
		return wait
	}
	b.until = now.Add(b.pause())
	return 0
}

func (b *breaker) note(now time.Time, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if ok {
		b.failures = 0
		return
	}
	if b.failures++; b.failures >= maxFailures {
		b.until = now.Add(b.pause())
	}
}

// pause returns the length of the next pause. It doubles with each failure above maxFailures.
func (b *breaker) pause() time.Duration {
	return min(minPause<<min(b.failures-maxFailures, 10), maxPause)
}
