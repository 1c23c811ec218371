package wire

import (
	"slices"
	"time"
)

// MovesWindow is within what time the moves count that an SLA's violation causes.
const MovesWindow = time.Hour

// MaxMoves is how many of them are remembered, and the most that a budget may be.
const MaxMoves = 60

// MergeMoves are the moves of both lists that count at now, each once, the oldest
// first. What a clock that is a little ahead has stamped counts; what lies further
// in the future is nobody's move.
func MergeMoves(a, b []time.Time, now time.Time) []time.Time {
	const ahead = 5 * time.Minute
	out := slices.Concat(a, b)
	out = slices.DeleteFunc(out, func(t time.Time) bool { return now.Sub(t) >= MovesWindow || t.Sub(now) > ahead })
	slices.SortFunc(out, time.Time.Compare)
	out = slices.CompactFunc(out, time.Time.Equal)
	return out[max(0, len(out)-MaxMoves):]
}
