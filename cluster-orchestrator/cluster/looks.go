package cluster

import (
	"math/bits"
	"time"
)

// looks are the last periodic checks of an instance, a bit each that is set where
// its SLA was violated; the latest is the lowest. A share of recent requests, as an
// SLA's rigidness is, is counted in them.
type looks uint64

// lookBack is how far back looks go.
const lookBack = 5 * time.Minute

const lookCount = int(lookBack / checkEvery)

// note enters a check.
func (l *looks) note(violated bool) {
	*l = *l << 1 & (1<<lookCount - 1)
	if violated {
		*l |= 1
	}
}

// earlier returns for how long the SLA was violated within lookBack, before the
// violation that lasts.
func (l looks) earlier() time.Duration {
	lasting := bits.TrailingZeros64(^uint64(l))
	return time.Duration(bits.OnesCount64(uint64(l)>>lasting)) * checkEvery
}
