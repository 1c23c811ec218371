package client

import (
	"sync"
	"time"
)

// breaker is a circuit breaker: a scheduler that fails maxFailures times in a row is not
// asked for a pause, so that not every placement waits for its deadline. After the pause
// one question tries again. The zero value is closed: questions pass.
type breaker struct {
	mu       sync.Mutex // guards the fields below
	failures int        // in a row
	until    time.Time  // end of the pause
}

const (
	maxFailures = 3
	minPause    = 5 * time.Second
	maxPause    = 5 * time.Minute
)

// allow returns 0 if the caller may ask, and else how long the pause still lasts. After
// a pause one caller may ask; the others wait for its result.
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

// record counts the result of a question.
func (b *breaker) record(now time.Time, ok bool) {
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

// pause doubles with each failure beyond maxFailures.
func (b *breaker) pause() time.Duration {
	return min(minPause<<min(b.failures-maxFailures, 10), maxPause)
}
