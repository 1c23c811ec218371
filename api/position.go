package api

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Geo is a location in degrees of WGS 84; north and east are positive.
type Geo struct {
	Lat float64 `json:"lat"` // -90 to 90
	Lon float64 `json:"lon"` // -180 to 180
}

// ParseGeo parses "48.14,11.58": latitude before longitude. Anything else is ErrInvalid.
func ParseGeo(text string) (Geo, error) {
	a, b, ok := strings.Cut(text, ",")
	lat, err1 := strconv.ParseFloat(strings.TrimSpace(a), 64)
	lon, err2 := strconv.ParseFloat(strings.TrimSpace(b), 64)
	g := Geo{Lat: lat, Lon: lon}
	if !ok || err1 != nil || err2 != nil || !g.Valid() {
		return Geo{}, fmt.Errorf("%q is not latitude,longitude in degrees, such as 48.14,11.58: %w", text, ErrInvalid)
	}
	return g, nil
}

// Valid reports whether g is a location on the earth.
func (g Geo) Valid() bool {
	return math.Abs(g.Lat) <= 90 && math.Abs(g.Lon) <= 180 // false for NaN
}

func (g Geo) String() string {
	return strconv.FormatFloat(g.Lat, 'f', -1, 64) + "," + strconv.FormatFloat(g.Lon, 'f', -1, 64)
}

// earthRadius is the mean radius, km (IUGG).
const earthRadius = 6371.0088

// Kilometres returns the great-circle distance from g to o on a sphere, with an error of at
// most 0.6 %.
func (g Geo) Kilometres(o Geo) float64 {
	const rad = math.Pi / 180
	la, lb := g.Lat*rad, o.Lat*rad
	s, t := math.Sin((lb-la)/2), math.Sin((o.Lon-g.Lon)*rad/2)
	return 2 * earthRadius * math.Asin(min(1, math.Sqrt(s*s+math.Cos(la)*math.Cos(lb)*t*t)))
}

// Position is a location on the earth and a Coordinate in the latency space, as far as they are
// known.
type Position struct {
	// Node is the node at this position. It is set within the node's cluster only and never sent.
	// The distance from a node to itself is 0, whatever the coordinates are.
	Node  NodeID      `json:"-"`
	Geo   *Geo        `json:"geo,omitempty"`
	Coord *Coordinate `json:"coord,omitempty"`
}

// Target has the positions outside of the cluster to which a placement is measured: the instances
// of a service in other clusters, or an area. Exactly one of Service and Area is set.
type Target struct {
	Service   ServiceID  `json:"service,omitempty"`
	Area      string     `json:"area,omitempty"`
	Positions []Position `json:"positions"`
}
