package overlay

import "time"

// bucket bounds how often something may happen: burst times at once, and rate
// times a second in the long run. An instance's is for questions that lead nowhere:
// what one took is given back when the answer is that it leads somewhere, so that
// whoever has a thousand neighbours may meet them all at once, and who asks for all
// the world may not.
type bucket struct {
	left float64
	at   time.Time
}

const (
	bucketRate  = 20
	bucketBurst = 256
)

func newBucket(now time.Time) bucket { return bucket{left: bucketBurst, at: now} }

func (b *bucket) take(now time.Time) bool {
	if b.at.IsZero() {
		*b = newBucket(now)
	}
	if d := now.Sub(b.at); d > 0 {
		b.left = min(bucketBurst, b.left+d.Seconds()*bucketRate)
		b.at = now
	}
	if b.left < 1 {
		return false
	}
	b.left--
	return true
}

// give takes one back.
func (b *bucket) give() { b.left = min(bucketBurst, b.left+1) }
