package vivaldi

import (
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Locate finds where something is that only answers: trilateration of Oakestra's
// Algorithm 2, from round trips that were measured to it from valid places. ok is
// false below 3 of them, or where they are not as many. The place's Error is the
// mean relative error that is left.
//
// It is the place where the squares of the relative errors are least, or near it:
// from the anchors' middle, each round steps to where the anchors, each pulling to
// its own distance, agree (majorization, de Leeuw 1977: no step is for the worse).
// Its height is what all distances are too long by, held to the anchors' own
// heights, for so few round trips cannot tell it from the rest.
func Locate(from []api.Coordinate, rtts []time.Duration) (at api.Coordinate, ok bool) {
	if len(from) < 3 || len(from) != len(rtts) {
		return api.Coordinate{}, false
	}
	at = New()
	secs, weights := make([]float64, len(rtts)), make([]float64, len(rtts))
	sum, usual := 0.0, 0.0
	for i := range from {
		secs[i] = max(rtts[i].Seconds(), 1e-4) // below, clocks and queues are what is measured
		weights[i] = 1 / (secs[i] * secs[i])
		sum += weights[i]
		usual += from[i].Height
		for k, v := range from[i].Vec {
			at.Vec[k] += weights[i] * v
		}
	}
	usual /= float64(len(from))
	for k := range at.Vec {
		at.Vec[k] /= sum
	}
	at.Height = max(usual, heightMin)
	const rounds = 100
	for range rounds {
		at.Vec, at.Height = settle(at, from, secs, weights, sum, usual)
	}
	at.Error = 0
	for i := range from {
		at.Error += math.Abs(Distance(at, from[i]).Seconds()-secs[i]) / secs[i] / float64(len(from))
	}
	at.Error = min(at.Error, errorMax)
	return at, true
}

func settle(at api.Coordinate, from []api.Coordinate, secs, weights []float64, sum, usual float64) (vec []float64, height float64) {
	vec = make([]float64, Dimensions)
	over := sum * usual // as if one more had found the usual height
	for i := range from {
		way := diff(at.Vec, from[i].Vec)
		d := max(magnitude(way), zero)
		flat := max(secs[i]-at.Height-from[i].Height, 0)
		for k := range vec {
			vec[k] += weights[i] * (from[i].Vec[k] + flat*way[k]/d) / sum
		}
		over += weights[i] * (secs[i] - d - from[i].Height)
	}
	return vec, max(over/(2*sum), heightMin)
}
