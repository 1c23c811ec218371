package session

const (
	windowBits  = 1 << 13
	windowWords = windowBits / 64
	// WindowSize is how far a counter may be behind the highest one seen.
	WindowSize = windowBits - 64
)

// Window says which counters were seen, so that each message is taken once
// (RFC 6479: a ring of words, of which the one ahead is cleared while moving on).
// Received and Expected count for a measure of loss.
type Window struct {
	next     uint64 // one more than the highest counter seen
	received uint64
	ring     [windowWords]uint64
}

// Fresh reports whether a counter may still be taken, without taking it.
func (w *Window) Fresh(c uint64) bool {
	if c >= w.next {
		return true
	}
	return c+WindowSize >= w.next && w.ring[c/64%windowWords]&(1<<(c%64)) == 0
}

// Take marks a counter as seen, and reports whether it was fresh.
func (w *Window) Take(c uint64) bool {
	if !w.Fresh(c) {
		return false
	}
	if c >= w.next {
		// Words between the highest counter's and c's hold what is long past.
		from, to := int64(w.next+63)/64, int64(c/64)
		if to-from >= windowWords {
			from = to - windowWords + 1
		}
		for i := from; i <= to; i++ {
			w.ring[i%windowWords] = 0
		}
		w.next = c + 1
	}
	w.ring[c/64%windowWords] |= 1 << (c % 64)
	w.received++
	return true
}

// Counts says how many messages came, and how many should have.
func (w *Window) Counts() (received, expected uint64) { return w.received, w.next }
