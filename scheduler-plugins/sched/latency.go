package sched

import (
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

type position struct {
	node    api.NodeID // empty: no node, or unknown
	latency latencyPoint
	point   point
	geo     api.Geo // the location of point
	located bool    // geo and point are known
}

func positionOf(at api.Position) (p position) {
	p.read(&Candidate{Geo: at.Geo, Coord: at.Coord})
	p.node = at.Node
	return p
}

// read sets p to the candidate's position. It does not recompute an unchanged point.
func (p *position) read(c *Candidate) {
	p.latency, p.node = latencyPointOf(c.Coord), nodeOf(c)
	switch {
	case c.Geo == nil || !c.Geo.Valid():
		p.located = false
	case !p.located || p.geo != *c.Geo:
		p.located, p.geo, p.point = true, *c.Geo, pointOf(*c.Geo)
	}
}

// nodeOf returns the candidate's id if it is a node, otherwise "".
func nodeOf(c *Candidate) api.NodeID {
	if c.Level != Nodes {
		return ""
	}
	return api.NodeID(c.ID)
}

// latencyPoint is a valid coordinate of the latency space in contiguous memory. The zero latent is
// unknown.
type latencyPoint struct {
	vec      [vivaldi.Dimensions]float64
	height   float64
	adjust   float64
	relError float64 // its relative error
	known    bool
}

func latencyPointOf(c *api.Coordinate) latencyPoint {
	if !vivaldi.Valid(c) {
		return latencyPoint{}
	}
	l := latencyPoint{height: c.Height, adjust: c.Adjustment, relError: c.Error, known: true}
	copy(l.vec[:], c.Vec)
	return l
}

// rtt returns vivaldi.Distance.
func (l *latencyPoint) rtt(o *latencyPoint) time.Duration {
	sum := 0.0
	for i := range l.vec {
		d := l.vec[i] - o.vec[i]
		sum += d * d
	}
	d := math.Sqrt(sum) + l.height + o.height
	if adjusted := d + l.adjust + o.adjust; adjusted > 0 {
		d = adjusted
	}
	return time.Duration(d * float64(time.Second))
}
