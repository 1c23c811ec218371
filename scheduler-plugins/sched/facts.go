package sched

import (
	"math"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Facts are the values from which a plugin scores a candidate that fits.
type Facts struct {
	// CPU and Memory are the shares of the candidate's capacity that are free after the
	// placement: at most 1, below 0 if it is overbooked. Without capacity the share is 0.
	CPU, Memory float64
	// Rest is the smallest such share of the disk and bandwidth that the request needs; 1 if
	// it needs none.
	Rest float64
	// Margin is the unused share of the tightest bound on distance or round trip: 0.25 for
	// 15 ms of 20 ms. The possible error of an estimated round trip is added to the round
	// trip, so Margin may be below 0. A cluster's Margin is that of its centre. It is 1 if
	// nothing is required or known.
	Margin float64
	// Bounded reports whether the request bounds a distance or round trip.
	Bounded bool
	// Fresh is 1 / (1 + age of the information in minutes).
	Fresh float64
	// Cluster is the candidate's id if it is a cluster.
	Cluster api.ClusterID

	req *Request
	id  string
}

// Peers returns the number of instances of the same service on the candidate.
func (f Facts) Peers() int { return f.req.Peers[f.id] }

// Monotone is a Plugin whose score never falls when CPU, Memory, Rest, Margin or Fresh rise,
// and never rises with Peers. Then a Table can skip candidates whose maximal score cannot
// win. Monotone returns whether the score depends on Peers. Plugins of the same name must
// score alike.
type Monotone interface {
	Plugin
	Monotone() (byPeers bool)
}

func (q *query) facts(c *Candidate) Facts {
	load := int64(c.Load + 1)
	f := Facts{
		CPU:     fraction(c.Free.MilliCPU-load*overhead.MilliCPU-q.Needs.MilliCPU, float64(c.Capacity.MilliCPU)),
		Memory:  fraction(c.Free.MemoryMB-load*overhead.MemoryMB-q.Needs.MemoryMB, float64(c.Capacity.MemoryMB)),
		Rest:    q.rest(c),
		Margin:  1,
		Bounded: q.boundsDistance(),
		Fresh:   freshness(c.Age),
		req:     q.Request,
		id:      c.ID,
	}
	switch {
	case c.Level == Clusters:
		f.Cluster = api.ClusterID(c.ID)
		if f.Bounded {
			f.Margin = q.clusterMargin(c)
		}
	case f.Bounded:
		var at position
		at.read(c)
		f.Margin = q.margin(c.ID, &at)
	}
	return f
}

// overhead is the cost of an instance in addition to its reservation: its shim and some
// processor time. It also spreads instances that reserve nothing.
var overhead = api.Resources{MilliCPU: 10, MemoryMB: 12}

func fraction(free int64, capacity float64) float64 {
	if capacity <= 0 {
		return 0
	}
	return min(float64(free)/capacity, 1)
}

func (q *query) rest(c *Candidate) float64 {
	least := 1.0
	if n := q.Needs.StorageMB; n > 0 {
		least = min(least, fraction(c.Free.StorageMB-n, float64(c.Capacity.StorageMB)))
	}
	if n := q.Needs.InMbit; n > 0 {
		least = min(least, fraction(c.Free.InMbit-n, float64(c.Capacity.InMbit)))
	}
	if n := q.Needs.OutMbit; n > 0 {
		least = min(least, fraction(c.Free.OutMbit-n, float64(c.Capacity.OutMbit)))
	}
	return least
}

func freshness(age time.Duration) float64 {
	if age <= 0 {
		return 1
	}
	return 1 / (1 + age.Minutes())
}

// boundsDistance reports whether the request bounds distances or round trips.
func (q *query) boundsDistance() bool { return len(q.circles) > 0 || len(q.bounds) > 0 }

// boundsLocation reports whether a zone or bound may exclude a candidate by its location.
func (q *query) boundsLocation() bool { return len(q.Zones) > 0 || len(q.bounds) > 0 }

func (q *query) margin(id string, at *position) float64 {
	least := 1.0
	if at.located {
		for i := range q.circles {
			z := &q.circles[i]
			least = min(least, unusedFraction(kilometres(at.point.chord(&z.centre)), z.Radius))
		}
	}
	for i := range q.bounds {
		b := &q.bounds[i]
		if b.Km > 0 {
			if c := b.chordTo(q, at); at.located && !math.IsNaN(c) {
				least = min(least, unusedFraction(kilometres(c), b.Km))
			}
			continue
		}
		if rtt, wrong, ok := b.nearest(q, id, at); ok {
			least = min(least, unusedFraction(float64(rtt)*(1+wrong), float64(b.RTT)))
		}
	}
	return least
}

// clusterMargin returns Facts.Margin of a cluster: from its centre if known, and from the
// nearest corner of its hull.
func (q *query) clusterMargin(c *Candidate) float64 {
	least := 1.0
	at := position{latency: latencyPointOf(c.Coord), node: nodeOf(c)}
	hull := hullOf(c)
	for i := range q.circles {
		if z := &q.circles[i]; len(hull) > 0 {
			least = min(least, unusedFraction(nearestCorner(hull, *z.Circle, &z.centre), z.Radius))
		}
	}
	for i := range q.bounds {
		b := &q.bounds[i]
		switch {
		case b.Km <= 0:
			if rtt, wrong, ok := b.nearest(q, c.ID, &at); ok {
				least = min(least, unusedFraction(float64(rtt)*(1+wrong), float64(b.RTT)))
			}
		case len(hull) > 0 && len(b.geo) > 0:
			nearest := math.Inf(1)
			for k, j := 0, 0; k < len(b.Points); k++ {
				if g := b.Points[k].Geo; g != nil && g.Valid() {
					nearest = min(nearest, nearestCorner(hull, *g, &b.geo[j]))
					j++
				}
			}
			least = min(least, unusedFraction(nearest, b.Km))
		}
	}
	return least
}

// nearestCorner returns the distance of a place from the nearest corner of a hull, 0 inside the hull.
func nearestCorner(hull []api.Geo, g api.Geo, p *point) float64 {
	if inside(hull, g) {
		return 0
	}
	least := 4.0
	for _, h := range hull {
		at := pointOf(h)
		least = min(least, at.chord(p))
	}
	return kilometres(least)
}

// unusedFraction returns the share of limit that remains above have, at least -1.
func unusedFraction(have, limit float64) float64 {
	if limit <= 0 {
		return -1
	}
	return max((limit-have)/limit, -1)
}
