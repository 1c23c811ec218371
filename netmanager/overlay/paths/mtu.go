package paths

import "time"

const (
	// minMTU passes everywhere (RFC 8200), and is assumed until a larger size is proven. Sizes include
	// the outer IP header.
	minMTU     = 1280
	defaultMTU = 1500

	mtuTries = 3                // losses before a size counts as too large
	mtuAgain = 10 * time.Minute // until larger sizes are tried again
)

// sizes are common path MTUs: PPPoE, tunnels, and tunnels in tunnels.
var sizes = []int{minMTU, 1320, 1360, 1400, 1420, 1440, 1460, 1472, 1480, 1492, 1500}

// mtu searches for the largest packet that passes a path (similar to RFC 8899). It tries the largest size
// first, then bisects. The zero value is ready to use.
type mtu struct {
	proven int       // largest size that passed; 0: minMTU is assumed
	tooBig int       // smallest size that failed; 0: none
	trying int       // size that is probed now; 0: none
	tries  int       // of trying
	next   time.Time // when to try again
	done   bool      // the search is complete
}

// safe returns the largest size that may be sent.
func (u *mtu) safe() int { return max(u.proven, minMTU) }

func (u *mtu) unknown() bool { return u.proven == 0 && !u.done }

// try returns the size to probe now; 0: none.
func (u *mtu) try(now time.Time, most int, timeout time.Duration) int {
	if u.next.After(now) {
		return 0
	}
	if u.done {
		u.done, u.tooBig = false, 0
	}
	if u.trying == 0 {
		if u.trying = u.choose(most); u.trying == 0 {
			u.done, u.next = true, now.Add(mtuAgain)
			return 0
		}
		u.tries = 0
	}
	u.tries++
	u.next = now.Add(timeout)
	return u.trying
}

// choose returns the next size to probe: the largest, or the middle of the remaining
// ones; 0: none remain.
func (u *mtu) choose(most int) int {
	var open []int
	for _, s := range sizes {
		if s <= most && s > u.safe() && (u.tooBig == 0 || s < u.tooBig) {
			open = append(open, s)
		}
	}
	switch {
	case len(open) == 0:
		return 0
	case u.tooBig == 0:
		return open[len(open)-1]
	}
	return open[len(open)/2]
}

// passed records that a packet of that size passed.
func (u *mtu) passed(size int) {
	if size <= u.proven && u.trying == 0 {
		return // as before
	}
	u.proven = max(u.proven, size)
	if u.tooBig <= size {
		u.tooBig = 0
	}
	if u.trying <= size {
		u.trying, u.next = 0, time.Time{}
		u.done = false
	}
}

// failed records that a packet of that size was lost. A size that passed before is dropped after as many
// losses as a new one.
func (u *mtu) failed(size int, now time.Time) {
	switch {
	case size <= u.proven:
		// The loss may be chance, or the path has changed.
		if u.trying != size {
			u.trying, u.tries, u.next, u.done = size, 1, now, false
			return
		}
		if u.tries >= mtuTries {
			*u = mtu{tooBig: size, next: now}
		}
	case size == u.trying && u.tries >= mtuTries:
		u.tooBig, u.trying, u.next = size, 0, now
	}
}
