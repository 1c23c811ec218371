package vivaldi

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Locate finds where something is that only answers: trilateration of Oakestra's
// Algorithm 2, from round trips that were measured to it from valid places. ok is
// false below 3 of them. The place's Error is the mean relative error that is left.
func Locate(from []api.Coordinate, rtts []time.Duration) (at api.Coordinate, ok bool) {
	if len(from) < 3 || len(from) != len(rtts) {
		return api.Coordinate{}, false
	}
	near := 0
	for i := range rtts {
		if rtts[i] < rtts[near] {
			near = i
		}
	}
	at = New()
	copy(at.Vec, from[near].Vec)
	at.Error = errorMax
	const rounds = 64
	for r := range rounds {
		for i := range from {
			anchor := from[i]
			anchor.Error = max(anchor.Error, 0.01)
			at = Update(at, anchor, rtts[i], uint64(r*len(from)+i+1))
		}
	}
	wrong := 0.0
	for i := range from {
		sec := max(rtts[i].Seconds(), zero)
		d := Distance(at, from[i]).Seconds() - sec
		wrong += max(d, -d) / sec
	}
	at.Error = wrong / float64(len(from))
	return at, true
}
