// Package vivaldi keeps a node's place in the network's latency space (Dabek et
// al., Vivaldi, SIGCOMM 2004, with height and gravity). Formulas, parameters and
// coordinates are those of hashicorp/serf's coordinate, beside which it was run:
// over 5,000 updates the two differ by less than 1e-16. It is written here because
// a core must be replayed: serf's client draws directions from an unseeded source,
// and locks. What serf adds is left out: its median filter, for the tunnel smooths
// what it measures, and the adjustment of one's own, which is 0. What is added is a
// bound on how far a height moves at once.
//
//	own = vivaldi.Update(own, peer, rtt, seed)
//	estimate := vivaldi.Distance(own, peer)
package vivaldi

import (
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Dimensions is how many numbers the Vec of a valid coordinate has.
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

// Valid reports whether a coordinate from outside can be used in computations.
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

// Update returns own after a measured round trip to a valid other. seed selects the direction
// if both are at the same place. A round trip below zero or above 10 s changes nothing.
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

// Moved reports whether a has moved from b by more than the fraction of its
// distance from the origin, or of a millisecond where that is more.
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
		// Serf's height moves by force/mag of both: if two nodes are nearly at one point, the
		// next measurement would move one by a hundred times the measured distance.
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
