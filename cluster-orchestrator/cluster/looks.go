package cluster

import (
	"math/bits"
	"time"
)

// looks has a bit for each of the last periodic checks of an instance, the latest in the
// lowest bit. A bit is set if the SLA was violated. The rigidness of an SLA, a share, is
// measured over these checks.
type looks uint64

// lookBack is the time that looks cover.
const lookBack = 5 * time.Minute

const lookCount = int(lookBack / checkEvery)

// note adds a check.
func (l *looks) note(violated bool) {
	*l = *l << 1 & (1<<lookCount - 1)
	if violated {
		*l |= 1
	}
}

// earlier returns for how long the SLA was violated within lookBack, without the
// violation that still lasts.
func (l looks) earlier() time.Duration {
	lasting := bits.TrailingZeros64(^uint64(l))
	return time.Duration(bits.OnesCount64(uint64(l)>>lasting)) * checkEvery
}
