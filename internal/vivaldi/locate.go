package vivaldi

import (
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Locate estimates the coordinate of a host that has none (trilateration, Oakestra's Algorithm 2)
// from the round trips rtts that were measured to it from the anchors from, whose coordinates must
// be valid. ok is false if there are fewer than 3 anchors or another number of rtts. The result's
// Error is the mean relative error that remains.
//
// It approximates the least squares of the relative errors by majorization (de Leeuw 1977), from
// the weighted mean of the anchors: for a given height no step increases the error. The height is
// the mean excess of the round trips, averaged with the anchors' mean height, because a few round
// trips do not determine it.
func Locate(from []api.Coordinate, rtts []time.Duration) (at api.Coordinate, ok bool) {
	if len(from) < 3 || len(from) != len(rtts) {
		return api.Coordinate{}, false
	}
	at = New()
	secs, weights := make([]float64, len(rtts)), make([]float64, len(rtts))
	sum, usual := 0.0, 0.0
	for i := range from {
		secs[i] = max(rtts[i].Seconds(), 1e-4) // shorter ones are dominated by clocks and queues
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
	over := sum * usual // the usual height has the weight of all anchors together
	for i := range from {
		step := diff(at.Vec, from[i].Vec)
		d := max(magnitude(step), zero)
		flat := max(secs[i]-at.Height-from[i].Height, 0)
		for k := range vec {
			vec[k] += weights[i] * (from[i].Vec[k] + flat*step[k]/d) / sum
		}
		over += weights[i] * (secs[i] - d - from[i].Height)
	}
	return vec, max(over/(2*sum), heightMin)
}
