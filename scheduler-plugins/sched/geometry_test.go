package sched

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
)

func geo(lat, lon float64) api.Geo { return api.Geo{Lat: lat, Lon: lon} }

var (
	munich = geo(48.14, 11.58)
	berlin = geo(52.52, 13.4)
	box    = []api.Geo{geo(47, 10), geo(47, 13), geo(50, 13), geo(50, 10)}
	fiji   = []api.Geo{geo(-20, 176), geo(-20, -178), geo(-15, -178), geo(-15, 176)}
)

func TestChordsAreGreatCircles(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a, b := places().Draw(t, "a"), places().Draw(t, "b")
		p, q := pointOf(a), pointOf(b)
		want := a.Kilometres(b)
		if got := kilometres(p.chord(&q)); math.Abs(got-want) > 1e-3 {
			t.Fatalf("%v km, by the haversine %v", got, want)
		}
		if km := rapid.Float64Range(0, 25000).Draw(t, "km"); math.Abs(km-want) > 1e-3 && (p.chord(&q) <= chordOf(km)) != (want <= km) {
			t.Fatalf("%v km is not told from %v", want, km)
		}
	})
}

// A polygon around the pole is not closed on the map: nothing is inside.
func TestAPolygonAroundThePoleContainsNothing(t *testing.T) {
	around := []api.Geo{geo(60, 0), geo(60, 100), geo(60, -130)}
	for _, g := range []api.Geo{geo(80, 20), geo(50, 20), geo(90, 0), geo(60, 50)} {
		if inside(around, g) {
			t.Errorf("%v is inside", g)
		}
	}
	for _, corners := range [][]api.Geo{nil, {geo(math.NaN(), 0), munich, berlin}, {geo(0, 0), geo(0, math.Inf(1)), berlin}} {
		if inside(corners, geo(1, 1)) {
			t.Errorf("%v holds somebody", corners)
		}
	}
}

func TestInside(t *testing.T) {
	dent := []api.Geo{geo(0, 0), geo(0, 10), geo(10, 10), geo(2, 5), geo(10, 0)}
	for _, tt := range []struct {
		corners []api.Geo
		g       api.Geo
		want    bool
	}{
		{box, munich, true},
		{box, berlin, false},
		{box, geo(47, 11), true}, // on the edge
		{box, geo(47, 10), true}, // a corner
		{box, geo(46.99, 11), false},
		{fiji, geo(-17, 178), true},
		{fiji, geo(-17, -179), true},
		{fiji, geo(-17, 180), true},
		{fiji, geo(-17, -180), true},
		{fiji, geo(-17, 0), false},
		{fiji, geo(-17, -177), false},
		{dent, geo(1, 5), true},
		{dent, geo(8, 5), false},
	} {
		if got := inside(tt.corners, tt.g); got != tt.want {
			t.Errorf("%v in %v: %v", tt.g, tt.corners, got)
		}
	}
}

func places() *rapid.Generator[api.Geo] {
	return rapid.Custom(func(t *rapid.T) api.Geo {
		if rapid.IntRange(0, 2).Draw(t, "by the date line") == 0 {
			return geo(rapid.Float64Range(-20, 20).Draw(t, "lat"), math.Remainder(rapid.Float64Range(170, 190).Draw(t, "lon"), 360))
		}
		return geo(rapid.Float64Range(-90, 90).Draw(t, "lat"), rapid.Float64Range(-180, 180).Draw(t, "lon"))
	})
}

// Every point between the hull's nodes is in the hull: it is never too small.
func TestHullsContainAllNodes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		nodes := rapid.SliceOfN(places(), 1, 12).Draw(t, "nodes")
		grid := rapid.SampledFrom([]float64{0, 0.5, 7}).Draw(t, "grid")
		hull := Hull(nodes, grid)
		centre := places().Draw(t, "centre")
		least := math.Inf(1)
		for _, g := range nodes {
			least = min(least, g.Kilometres(centre))
			if d := hullDistance(hull, g); d > 1e-3 {
				t.Fatalf("%v is %v km off %v", g, d, hull)
			}
		}
		if !mayBeWithin(hull, centre, least+1e-3) {
			t.Fatalf("%v is %v km from a node and not near %v", centre, least, hull)
		}
		d := hullDistance(hull, centre)
		if d > least+1e-3 {
			t.Fatalf("%v km from a node, %v from the hull", least, d)
		}
		if !mayBeWithin(hull, centre, d+0.01*d+0.3) || d > 1 && mayBeWithin(hull, centre, d*0.99-0.3) {
			t.Fatalf("%v km away, and near does not know", d)
		}
		around := []api.Geo{geo(centre.Lat, centre.Lon), geo(min(centre.Lat+4, 90), centre.Lon), geo(centre.Lat, math.Remainder(centre.Lon+7, 360))}
		for _, g := range nodes {
			if inside(around, g) && !intersect(hull, around) {
				t.Fatalf("%v is in %v, which does not meet its hull %v", g, around, hull)
			}
		}
	})
}

func TestHulls(t *testing.T) {
	if h := Hull(nil, 1); h != nil {
		t.Errorf("nobody has the hull %v", h)
	}
	if h := Hull([]api.Geo{{Lat: math.NaN()}, geo(0, 200)}, 0); h != nil {
		t.Errorf("nowhere has the hull %v", h)
	}
	if h := Hull([]api.Geo{munich, munich}, 0); len(h) != 1 || h[0] != munich {
		t.Errorf("one place has the hull %v", h)
	}
	if h := Hull([]api.Geo{munich}, 1); len(h) != 4 || !inside(h, geo(48.9, 11.1)) || inside(h, geo(49.1, 11.5)) {
		t.Errorf("a cell is %v", h)
	}
	// Locations on both sides of the date line do not go around the earth.
	h := Hull([]api.Geo{geo(0, 179), geo(0, -179), geo(2, 180)}, 0)
	if len(h) != 3 || !inside(h, geo(1, 180)) || inside(h, geo(1, 0)) {
		t.Errorf("by the date line: %v", h)
	}
	// Locations all around the earth do.
	h = Hull([]api.Geo{geo(0, -120), geo(10, -1), geo(0, 119)}, 180)
	if !inside(h, geo(5, 0)) || !inside(h, geo(5, 180)) || !inside(h, geo(5, -90)) {
		t.Errorf("all around: %v", h)
	}
	if d := hullDistance([]api.Geo{munich, geo(48.14, 12.58)}, berlin); math.Abs(d-geo(48.14, 12.58).Kilometres(berlin)) > 2 {
		t.Errorf("Berlin is %v km away", d)
	}
}

// Hulls are input from other clusters.
func TestInvalidHullsAreIgnored(t *testing.T) {
	for _, hull := range [][]api.Geo{
		{geo(math.NaN(), 0), munich}, {geo(math.Inf(1), 0)}, {geo(1e300, -1e300), munich, berlin}, make([]api.Geo, maxCorners+1),
	} {
		if hullOf(&Candidate{Hull: hull}) != nil {
			t.Errorf("%v is looked at", hull[:1])
		}
	}
}
