package sched

import (
	"math"

	"github.com/treeline-edge/treeline/api"
)

// point is a point on the unit sphere. Distances between points are compared as squared
// lengths of chords, which need no trigonometry.
type point [3]float64

const (
	radian      = math.Pi / 180
	earthRadius = 6371.0088 // km, as in api.Geo.Kilometres
)

func pointOf(g api.Geo) point {
	sinLat, cosLat := math.Sincos(g.Lat * radian)
	sinLon, cosLon := math.Sincos(g.Lon * radian)
	return point{cosLat * cosLon, cosLat * sinLon, sinLat}
}

// chord returns the square of the straight distance between two points, 0 to 4.
func (p *point) chord(o *point) float64 {
	x, y, z := p[0]-o[0], p[1]-o[1], p[2]-o[2]
	return x*x + y*y + z*z
}

// chordOf returns the chord of a distance on the ground. A distance beyond half the
// circumference exceeds every chord.
func chordOf(km float64) float64 {
	half := km / earthRadius / 2
	if half >= math.Pi/2 {
		return 5
	}
	s := 2 * math.Sin(half)
	return s * s
}

// kilometres returns the distance on the ground of a chord.
func kilometres(chord float64) float64 {
	return 2 * earthRadius * math.Asin(min(math.Sqrt(chord)/2, 1))
}
