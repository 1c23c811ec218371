package paths

import "time"

const (
	// leastMTU passes everywhere (RFC 8200), and is what a way has until more is
	// proven. Sizes are of packets with their outer IP header.
	leastMTU   = 1280
	defaultMTU = 1500

	mtuTries = 3                // that are missed before a size counts as too long
	mtuAgain = 10 * time.Minute // after which longer ones are tried again
)

// sizes are where paths commonly end: PPPoE, tunnels, and tunnels in tunnels.
var sizes = []int{leastMTU, 1320, 1360, 1400, 1420, 1440, 1460, 1472, 1480, 1492, 1500}

// mtu searches for the longest packet that a way carries (in the manner of
// RFC 8899): the longest first, then by halves. The zero value knows nothing.
type mtu struct {
	proven int       // 0: leastMTU
	tooBig int       // the least that failed; 0: none
	trying int       // 0: nothing
	tries  int       // of trying
	next   time.Time // when to try again
	done   bool
}

// safe is what may be sent by the way.
func (u *mtu) safe() int { return max(u.proven, leastMTU) }

func (u *mtu) unknown() bool { return u.proven == 0 && !u.done }

// try is the size to probe now; 0: none.
func (u *mtu) try(now time.Time, most int, patience time.Duration) int {
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
	u.next = now.Add(patience)
	return u.trying
}

// choose is the next size worth a try: the longest, or the middle of those that
// remain; 0: none remain.
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

// passed: a packet of that size came through.
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

// failed: a packet of that size did not. What passed before is not believed any
// longer when it fails as often as something new.
func (u *mtu) failed(size int, now time.Time) {
	switch {
	case size <= u.proven:
		// Longer than leastMTU, and lost: maybe by chance, maybe the path has changed.
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

// wake is when try has something to say again.
func (u *mtu) wake() time.Time { return u.next }
