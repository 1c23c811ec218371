package wire

import (
	"slices"
	"time"
)

// MovesWindow is how long a move counts towards the limit on moves because of violations.
const MovesWindow = time.Hour

// MaxMoves bounds the moves that are kept, and the moves that an SLA can allow in MovesWindow.
const MaxMoves = 60

// MergeMoves returns the newest MaxMoves moves of both lists that count at now, each once, oldest
// first. Because clocks differ, moves up to 5 minutes in the future count; later ones do not.
func MergeMoves(a, b []time.Time, now time.Time) []time.Time {
	const ahead = 5 * time.Minute
	out := slices.Concat(a, b)
	out = slices.DeleteFunc(out, func(t time.Time) bool { return now.Sub(t) >= MovesWindow || t.Sub(now) > ahead })
	slices.SortFunc(out, time.Time.Compare)
	out = slices.CompactFunc(out, time.Time.Equal)
	return out[max(0, len(out)-MaxMoves):]
}
