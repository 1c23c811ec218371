package sched

import (
	"math"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// query is a request prepared for many candidates.
type query struct {
	*Request
	stamps  []uint64 // of the table's rows; nil: no table
	row     int      // row of the present candidate in the table, from 1; 0: none
	circles []circle // of its zones
	bounds  []bound
	by      []string           // distinct Domain.By of its domains
	full    map[domain]*Domain // its domains; nil: not filled yet
}

type circle struct {
	*Zone
	centre point
	chord  float64 // of its radius
}

// bound is a Bound with prepared points.
type bound struct {
	*Bound
	geo          []point
	coord        []latencyPoint
	chord        float64      // of Km
	nodes        []api.NodeID // the nodes among the points
	unknownPoint bool         // the position of a point is unknown
	near         []*nearby    // parallel to Places; empty without a table
}

type domain struct {
	by, name     string
	antiAffinity bool
}

// read prepares the query for a request. It reuses the query's memory.
func (q *query) read(req *Request) {
	q.Request, q.row, q.stamps = req, 0, nil
	q.circles, q.bounds = q.circles[:0], resized(q.bounds, len(req.Bounds))
	for i := range req.Zones {
		if z := &req.Zones[i]; z.Circle != nil {
			q.circles = append(q.circles, circle{z, pointOf(*z.Circle), chordOf(z.Radius)})
		}
	}
	for i := range req.Bounds {
		q.bounds[i].read(&req.Bounds[i])
	}
	q.by, q.full = q.by[:0], nil
}

// setRow sets the row of the present candidate if the query is on a table.
func (q *query) setRow(i int) {
	if q.stamps != nil {
		q.row = i + 1
	}
}

// readFor prepares the query for a request on a table.
func (q *query) readFor(req *Request, t *Table) {
	q.read(req)
	q.stamps = t.stamps
	for i := range q.bounds {
		b := &q.bounds[i]
		for _, of := range b.Places {
			b.near = append(b.near, t.nearby(of, b.measure()))
		}
	}
}

func (b *bound) read(from *Bound) {
	b.Bound, b.geo, b.coord, b.chord, b.unknownPoint, b.near = from, b.geo[:0], b.coord[:0], chordOf(from.Km), false, b.near[:0]
	b.nodes = b.nodes[:0]
	for _, p := range from.Points {
		if p.Node != "" {
			b.nodes = append(b.nodes, p.Node)
		}
		switch {
		case from.Km > 0 && p.Geo != nil && p.Geo.Valid():
			b.geo = append(b.geo, pointOf(*p.Geo))
		case from.Km <= 0 && latencyPointOf(p.Coord).known:
			b.coord = append(b.coord, latencyPointOf(p.Coord))
		default:
			b.unknownPoint = true
		}
	}
}

// resized returns s with length n. It keeps the elements within s's capacity, for their memory.
func resized(s []bound, n int) []bound {
	s = s[:cap(s)]
	for len(s) < n {
		s = append(s, bound{})
	}
	return s[:n]
}

// nearest returns the shortest round trip from a node to the bound's points, and its possible
// relative error. ok is false if it is unknown.
func (b *bound) nearest(q *query, id string, at *position) (rtt time.Duration, wrong float64, ok bool) {
	if measured, ok := b.Measured[id]; ok {
		return measured, 0, true
	}
	if b.onSameNode(at) {
		return 0, 0, true
	}
	l := &at.latency
	for i := range b.coord {
		if !l.known {
			break
		}
		if d := l.rtt(&b.coord[i]); !ok || d < rtt {
			rtt, wrong, ok = d, max(l.relError, b.coord[i].relError), true
		}
	}
	for i := range b.Places {
		if e := b.closest(q, i, at); e.index >= 0 && (!ok || e.distance < float64(rtt)) {
			rtt, wrong, ok = time.Duration(e.distance), e.relError, true
		}
	}
	return rtt, wrong, ok
}

// onSameNode reports whether the position is on the same node as one of the bound's Points.
// Places.nearest does this for Places.
func (b *bound) onSameNode(at *position) bool {
	return at.node != "" && slices.Contains(b.nodes, at.node)
}

func (b *bound) measure() int {
	if b.Km > 0 {
		return byKm
	}
	return byRTT
}

// closest returns the nearest of the bound's i-th Places to the candidate.
func (b *bound) closest(q *query, i int, at *position) closest {
	if q.row == 0 || i >= len(b.near) {
		e := noPlace
		b.Places[i].nearest(b.measure(), at, &e)
		return e
	}
	e, stamp := &b.near[i].rows[q.row-1], q.stamps[q.row-1]
	if e.stamp != stamp {
		*e = closest{index: -1, stamp: stamp}
	}
	b.Places[i].nearest(b.measure(), at, e)
	return *e
}

// chordTo returns the chord from a node to the nearest of the bound's points, or NaN if it is
// unknown.
func (b *bound) chordTo(q *query, at *position) float64 {
	if b.onSameNode(at) {
		return 0
	}
	least := math.NaN()
	for i := range b.geo {
		if !at.located {
			break
		}
		if c := at.point.chord(&b.geo[i]); !(c >= least) {
			least = c
		}
	}
	for i := range b.Places {
		if e := b.closest(q, i, at); e.index >= 0 && !(e.distance >= least) {
			least = e.distance
		}
	}
	return least
}

// fullDomain returns a full domain that contains the candidate, or nil: a domain of
// anti-affinity if apart is true, otherwise one of spread.
func (q *query) fullDomain(c *Candidate, antiAffinity bool) *Domain {
	if len(q.Domains) == 0 {
		return nil
	}
	if q.full == nil {
		q.indexDomains()
	}
	for _, by := range q.by {
		name := ""
		switch {
		case by == "cluster" && c.Level == Nodes:
			// A cluster's core only names its own cluster, which has all candidates.
			for i := range q.Domains {
				if d := &q.Domains[i]; d.By == by && (d.AntiAffinity != "") == antiAffinity {
					return d
				}
			}
		case by == string(c.Level):
			name = c.ID
		case c.Level == Nodes:
			name = c.Labels[by]
		}
		if name == "" {
			continue
		}
		if d := q.full[domain{by, name, antiAffinity}]; d != nil {
			return d
		}
	}
	return nil
}

func (q *query) indexDomains() {
	q.full = make(map[domain]*Domain, len(q.Domains))
	for i := range q.Domains {
		d := &q.Domains[i]
		if !slices.Contains(q.by, d.By) {
			q.by = append(q.by, d.By)
		}
		if k := (domain{d.By, d.Name, d.AntiAffinity != ""}); q.full[k] == nil {
			q.full[k] = d
		}
	}
}

// maxCorners bounds the corners of a hull; longer hulls are ignored.
const maxCorners = 512

// hullOf returns the hull of all nodes of a cluster, or nil if it is unknown.
func hullOf(c *Candidate) []api.Geo {
	if c.Unplaced > 0 || len(c.Hull) > maxCorners || slices.ContainsFunc(c.Hull, func(g api.Geo) bool { return !g.Valid() }) {
		return nil
	}
	return c.Hull
}
