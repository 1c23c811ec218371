package session

const (
	windowBits  = 1 << 13
	windowWords = windowBits / 64
	// WindowSize is how far a counter may be behind the highest one.
	WindowSize = windowBits - 64
)

// Window records received counters, so that each message is accepted once (RFC 6479: a ring of words; the
// next word is cleared when the window moves). It counts messages to measure loss.
type Window struct {
	next     uint64 // one more than the highest counter seen
	received uint64
	ring     [windowWords]uint64
}

// Fresh reports whether Take would accept a counter.
func (w *Window) Fresh(c uint64) bool {
	if c >= w.next {
		return true
	}
	return c+WindowSize >= w.next && w.ring[c/64%windowWords]&(1<<(c%64)) == 0
}

// Take records a counter, and reports whether it was fresh.
func (w *Window) Take(c uint64) bool {
	if !w.Fresh(c) {
		return false
	}
	if c >= w.next {
		// Clear the words between those of the highest counter and of c.
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

// Counts returns how many messages were received, and how many were sent at least.
func (w *Window) Counts() (received, expected uint64) { return w.received, w.next }
