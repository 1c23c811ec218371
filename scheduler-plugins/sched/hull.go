package sched

import (
	"cmp"
	"math"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Hull returns the convex hull of locations, counter-clockwise. Edges take the shorter
// direction of longitude. With a grid above 0, in degrees, it is the hull of the grid cells
// that contain the locations, which hides where in a cell a location is. Invalid locations are
// left out. The hull of one or two locations has as many corners.
func Hull(locations []api.Geo, grid float64) []api.Geo {
	spots := unwrapLongitudes(locations)
	if grid > 0 {
		spots = gridCorners(spots, grid)
	}
	if len(spots) == 0 {
		return nil
	}
	low, high := spots[0], spots[0]
	for _, s := range spots {
		low, high = mapPoint{min(low.x, s.x), min(low.y, s.y)}, mapPoint{max(high.x, s.x), max(high.y, s.y)}
	}
	if high.x-low.x >= 360 { // the hull goes around the earth: use a band of latitudes
		spots = []mapPoint{{-180, low.y}, {180, low.y}, {180, high.y}, {-180, high.y}}
	}
	return wrapLongitudes(convexHull(spots))
}

// unwrapLongitudes puts locations on a map that is cut at the widest gap of longitude between them, so
// that locations on both sides of the date line are close to each other.
func unwrapLongitudes(locations []api.Geo) []mapPoint {
	var spots []mapPoint
	for _, g := range locations {
		if g.Valid() {
			spots = append(spots, mapPoint{g.Lon, g.Lat})
		}
	}
	slices.SortFunc(spots, func(a, b mapPoint) int { return cmp.Compare(a.x, b.x) })
	if len(spots) == 0 {
		return nil
	}
	first, widest := 0, spots[0].x+360-spots[len(spots)-1].x
	for i := 1; i < len(spots); i++ {
		if gap := spots[i].x - spots[i-1].x; gap > widest {
			first, widest = i, gap
		}
	}
	for i := range first {
		spots[i].x += 360
	}
	return spots
}

// gridCorners returns the corners of the grid cells that contain the spots.
func gridCorners(spots []mapPoint, grid float64) []mapPoint {
	span := func(v float64) (low, high float64) {
		low, high = math.Floor(v/grid)*grid, math.Ceil(v/grid)*grid
		if low > v { // because of rounding
			low -= grid
		}
		if high < v {
			high += grid
		}
		return low, high
	}
	out := make([]mapPoint, 0, 4*len(spots))
	for _, s := range spots {
		west, east := span(s.x)
		south, north := span(s.y)
		south, north = max(south, -90), min(north, 90)
		out = append(out, mapPoint{west, south}, mapPoint{east, south}, mapPoint{east, north}, mapPoint{west, north})
	}
	return out
}

// convexHull returns the convex hull, counter-clockwise (Andrew's monotone chain).
func convexHull(spots []mapPoint) []mapPoint {
	slices.SortFunc(spots, func(a, b mapPoint) int { return cmp.Or(cmp.Compare(a.x, b.x), cmp.Compare(a.y, b.y)) })
	spots = slices.Compact(spots)
	if len(spots) < 3 {
		return spots
	}
	var out []mapPoint
	chain := func(s mapPoint, floor int) {
		for len(out) >= floor+2 && s.side(out[len(out)-2], out[len(out)-1]) <= 0 {
			out = out[:len(out)-1]
		}
		out = append(out, s)
	}
	for _, s := range spots {
		chain(s, 0)
	}
	half := len(out) - 1
	for i := len(spots) - 2; i >= 0; i-- {
		chain(spots[i], half)
	}
	return out[:len(out)-1]
}

// wrapLongitudes returns a hull with longitudes in [-180, 180]. It adds corners to long edges, whose
// shorter direction would be ambiguous.
func wrapLongitudes(hull []mapPoint) []api.Geo {
	const long = 90
	var out []api.Geo
	for i, a := range hull {
		b := hull[(i+1)%len(hull)]
		parts := max(math.Ceil(math.Abs(b.x-a.x)/long), 1)
		for k := range int(parts) {
			f := float64(k) / parts
			lon := a.x + f*(b.x-a.x)
			for lon > 180 {
				lon -= 360
			}
			for lon < -180 {
				lon += 360
			}
			out = append(out, api.Geo{Lat: a.y + f*(b.y-a.y), Lon: lon})
		}
	}
	return out
}

// mayBeWithin reports whether a point of the hull may be at most km away from g. It may be wrong, but
// only towards true and by at most 100 m.
func mayBeWithin(hull []api.Geo, g api.Geo, km float64) bool {
	if inside(hull, g) {
		return true
	}
	p := pointOf(g)
	e := edges(hull)
	for a, b, ok := e.next(); ok; a, b, ok = e.next() {
		if edgeMayBeWithin(a, b, &p, km) {
			return true
		}
	}
	return false
}

// hullDistance returns a lower bound of the distance of g from the hull, at most 100 m or 0.2 % too
// short.
func hullDistance(hull []api.Geo, g api.Geo) float64 {
	if inside(hull, g) {
		return 0
	}
	p := pointOf(g)
	best := math.Inf(1)
	e := edges(hull)
	for a, b, ok := e.next(); ok; a, b, ok = e.next() {
		best = min(best, edgeDistance(a, b, &p, best))
	}
	return best
}

const minHalfEdge = 0.05 // km; edges with a shorter half are not divided further

func edgeMayBeWithin(a, b mapPoint, p *point, km float64) bool {
	mid, half := midpoint(a, b)
	m := pointOf(mid)
	d := kilometres(m.chord(p))
	switch {
	case d <= km:
		return true
	case d-half > km:
		return false
	case half <= minHalfEdge:
		return true
	}
	c := mapPoint{(a.x + b.x) / 2, (a.y + b.y) / 2}
	return edgeMayBeWithin(a, c, p, km) || edgeMayBeWithin(c, b, p, km)
}

func edgeDistance(a, b mapPoint, p *point, best float64) float64 {
	mid, half := midpoint(a, b)
	m := pointOf(mid)
	d := kilometres(m.chord(p))
	switch {
	case d-half >= best:
		return best
	case half <= max(minHalfEdge, d/1000):
		return max(d-half, 0)
	}
	c := mapPoint{(a.x + b.x) / 2, (a.y + b.y) / 2}
	best = min(best, edgeDistance(a, c, p, best))
	return min(best, edgeDistance(c, b, p, best))
}

// midpoint returns the middle of an edge and an upper bound of half its length on the ground.
func midpoint(a, b mapPoint) (mid api.Geo, half float64) {
	widest := 1.0 // cosine of the latitude nearest to the equator
	if a.y > 0 == (b.y > 0) {
		widest = math.Cos(min(math.Abs(a.y), math.Abs(b.y)) * radian)
	}
	length := math.Hypot(b.y-a.y, (b.x-a.x)*widest) * radian * earthRadius
	return api.Geo{Lat: (a.y + b.y) / 2, Lon: (a.x + b.x) / 2}, length / 2
}
