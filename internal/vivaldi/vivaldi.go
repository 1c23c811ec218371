// Package vivaldi computes Vivaldi coordinates: a node's place in the network's latency space
// (Dabek et al., SIGCOMM 2004, with height and gravity). Formulas, parameters and coordinates are
// those of hashicorp/serf's package coordinate. Serf's client is not used because it locks and
// draws directions from an unseeded source, so that a core could not be replayed. The differences:
// there is no median filter, because the tunnel smooths its measurements; a node's own Adjustment
// is 0; and the change of a height per update is bounded.
//
//	own = vivaldi.Update(own, peer, rtt, seed)
//	estimate := vivaldi.Distance(own, peer)
package vivaldi

import (
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Dimensions is the length of Vec in a valid coordinate.
const Dimensions = 8

const (
	errorMax  = 1.5
	ce, cc    = 0.25, 0.25
	heightMin = 10e-6
	rho       = 150.0
	zero      = 1e-6
	rttMax    = 10 * time.Second
)

// New returns the coordinate of a node without measurements.
func New() api.Coordinate {
	return api.Coordinate{Vec: make([]float64, Dimensions), Error: errorMax, Height: heightMin}
}

// Valid reports whether a coordinate, which may be from another machine, can be used in
// computations.
func Valid(c *api.Coordinate) bool {
	if c == nil || len(c.Vec) != Dimensions || c.Height < 0 || c.Error < 0 {
		return false
	}
	sum := c.Error + c.Adjustment + c.Height
	for _, v := range c.Vec {
		sum += math.Abs(v)
	}
	return !math.IsNaN(sum) && math.Abs(sum) < 1e4
}

// Distance returns the estimated round trip between two valid coordinates.
func Distance(a, b api.Coordinate) time.Duration {
	d := raw(a, b)
	if adjusted := d + a.Adjustment + b.Adjustment; adjusted > 0 {
		d = adjusted
	}
	return time.Duration(d * float64(time.Second))
}

// Update returns own after a measured round trip to other, which must be valid. seed selects the
// direction if both are at the same place. Round trips below 0 or above 10 s change nothing.
func Update(own, other api.Coordinate, rtt time.Duration, seed uint64) api.Coordinate {
	if rtt < 0 || rtt > rttMax {
		return own
	}
	sec := max(rtt.Seconds(), zero)
	dist := Distance(own, other).Seconds()
	wrong := math.Abs(dist-sec) / sec
	weight := own.Error / max(own.Error+other.Error, zero)
	next := own
	next.Error = min(ce*weight*wrong+own.Error*(1-ce*weight), errorMax)
	next = push(next, cc*weight*(sec-dist), other, seed)
	pull := Distance(New(), next).Seconds() / rho
	next = push(next, -pull*pull, New(), seed)
	if !Valid(&next) {
		return New()
	}
	return next
}

// Moved reports whether a has moved from b by more than the fraction of b's distance from the
// origin, or of a millisecond if that is more.
func Moved(a, b api.Coordinate, fraction float64) bool {
	moved := magnitude(diff(a.Vec, b.Vec)) + math.Abs(a.Height-b.Height)
	return moved > fraction*max(magnitude(b.Vec)+b.Height, 1e-3)
}

func push(c api.Coordinate, force float64, from api.Coordinate, seed uint64) api.Coordinate {
	dir := diff(c.Vec, from.Vec)
	mag := magnitude(dir)
	if mag <= zero {
		for i := range dir {
			seed = seed*6364136223846793005 + 1442695040888963407 // Knuth's MMIX
			dir[i] = float64(seed>>11)/(1<<53) - 0.5
		}
	}
	unit := max(magnitude(dir), zero)
	vec := make([]float64, Dimensions)
	for i := range vec {
		vec[i] = c.Vec[i] + dir[i]/unit*force
	}
	c.Vec = vec
	if mag > zero {
		// The height changes by at most force. Serf has no bound: for two nodes at nearly the same
		// point, one measurement could change the height by 100 times the measured distance.
		lift := (c.Height + from.Height) * force / mag
		c.Height = max(c.Height+min(max(lift, -math.Abs(force)), math.Abs(force)), heightMin)
	}
	return c
}

func raw(a, b api.Coordinate) float64 { return magnitude(diff(a.Vec, b.Vec)) + a.Height + b.Height }

func diff(a, b []float64) []float64 {
	d := make([]float64, len(a))
	for i := range d {
		d[i] = a[i] - b[i]
	}
	return d
}

func magnitude(v []float64) float64 {
	sum := 0.0
	for _, x := range v {
		sum += x * x
	}
	return math.Sqrt(sum)
}
