package outside

import (
	"sync"
	"time"
)

// breaker keeps a scheduler that fails from costing every placement its deadline:
// after some failures in a row nobody is asked for a while, then one tries.
type breaker struct {
	mu    sync.Mutex // guards all below
	fails int        // in a row
	until time.Time
}

const (
	tolerated = 3
	pauseMin  = 5 * time.Second
	pauseMax  = 5 * time.Minute
)

// shut is how long nobody shall ask, 0 if the caller may. When a pause is over one
// caller may, and the others wait for how it fares.
func (b *breaker) shut(now time.Time) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fails < tolerated {
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
		b.fails = 0
		return
	}
	if b.fails++; b.fails >= tolerated {
		b.until = now.Add(b.pause())
	}
}

// pause doubles with each failure that is not tolerated.
func (b *breaker) pause() time.Duration {
	return min(pauseMin<<min(b.fails-tolerated, 10), pauseMax)
}
