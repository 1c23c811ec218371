package sched

import (
	"math"

	"github.com/treeline-edge/treeline/api"
)

// Polygons and hulls are drawn on a map with straight meridians and parallels, as in GeoJSON
// (RFC 7946 §3.1.1). Edges take the shorter direction of longitude, so that the date line
// needs no special case. A polygon around a pole is not closed on such a map: nothing is
// inside it, and the SLA's parser refuses it.

// mapPoint is a point on the map. Its longitude may exceed 180.
type mapPoint struct{ x, y float64 }

type edgeWalk struct {
	corners []api.Geo
	i       int
	at      mapPoint
}

func edges(corners []api.Geo) edgeWalk {
	e := edgeWalk{corners: corners}
	if len(corners) > 0 {
		e.at = mapPoint{corners[0].Lon, corners[0].Lat}
	}
	return e
}

func (e *edgeWalk) next() (a, b mapPoint, ok bool) {
	if e.i >= len(e.corners) {
		return a, b, false
	}
	e.i++
	to := e.corners[e.i%len(e.corners)]
	a = e.at
	b = mapPoint{a.x + normalizeLongitude(to.Lon-e.corners[e.i-1].Lon), to.Lat}
	e.at = b
	return a, b, true
}

// closed reports, after the last edge, whether it ends at the start of the first.
func (e *edgeWalk) closed() bool {
	return len(e.corners) > 0 && math.Abs(e.at.x-e.corners[0].Lon) < 1
}

// normalizeLongitude normalises a difference of longitudes to -180 to 180.
func normalizeLongitude(d float64) float64 {
	switch {
	case d > 180:
		return d - 360
	case d < -180:
		return d + 360
	}
	return d
}

// inside reports whether g is in the polygon or on its edge.
func inside(corners []api.Geo, g api.Geo) bool {
	odd, on := [3]bool{}, false
	e := edges(corners)
	for a, b, ok := e.next(); ok; a, b, ok = e.next() {
		for k := range odd {
			p := mapPoint{g.Lon + float64(k-1)*360, g.Lat}
			on = on || p.onSegment(a, b)
			if (a.y > p.y) != (b.y > p.y) && p.x < a.x+(p.y-a.y)/(b.y-a.y)*(b.x-a.x) {
				odd[k] = !odd[k]
			}
		}
	}
	return e.closed() && (on || odd[0] || odd[1] || odd[2])
}

// tolerance is a tolerance in degrees, below the precision of any location.
const tolerance = 1e-9

// side is positive if p is left of the line from a to b.
func (p mapPoint) side(a, b mapPoint) float64 { return (b.x-a.x)*(p.y-a.y) - (b.y-a.y)*(p.x-a.x) }

func (p mapPoint) onSegment(a, b mapPoint) bool {
	return min(a.x, b.x)-tolerance <= p.x && p.x <= max(a.x, b.x)+tolerance && min(a.y, b.y)-tolerance <= p.y && p.y <= max(a.y, b.y)+tolerance &&
		math.Abs(p.side(a, b)) <= tolerance*max(math.Abs(b.x-a.x)+math.Abs(b.y-a.y), tolerance)
}

// intersect reports whether two polygons have a common point. A hull of one or two corners is a
// polygon without area.
func intersect(p, q []api.Geo) bool {
	if len(p) == 0 || len(q) == 0 {
		return false
	}
	if inside(q, p[0]) || inside(p, q[0]) {
		return true
	}
	pe := edges(p)
	for a, b, ok := pe.next(); ok; a, b, ok = pe.next() {
		qe := edges(q)
		for c, d, ok := qe.next(); ok; c, d, ok = qe.next() {
			for k := -2.0; k <= 2; k++ {
				if segmentsTouch(a, b, mapPoint{c.x + k*360, c.y}, mapPoint{d.x + k*360, d.y}) {
					return true
				}
			}
		}
	}
	return false
}

// segmentsTouch reports whether the lines a-b and c-d touch.
func segmentsTouch(a, b, c, d mapPoint) bool {
	if max(a.x, b.x)+tolerance < min(c.x, d.x) || max(c.x, d.x)+tolerance < min(a.x, b.x) ||
		max(a.y, b.y)+tolerance < min(c.y, d.y) || max(c.y, d.y)+tolerance < min(a.y, b.y) {
		return false
	}
	if c.onSegment(a, b) || d.onSegment(a, b) || a.onSegment(c, d) || b.onSegment(c, d) {
		return true
	}
	return (c.side(a, b) > 0) != (d.side(a, b) > 0) && (a.side(c, d) > 0) != (b.side(c, d) > 0)
}
