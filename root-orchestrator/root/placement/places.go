package placement

import (
	"math"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// places has the distinct positions of a service's instances, however many instances are at each.
// It is updated with each change of an instance, because one step may take thousands of decisions
// that read it.
type places struct {
	spots   []*spot // in the order of their creation
	at      map[cell]*spot
	unknown map[api.ClusterID]int // number of instances whose position is not reported yet
	reaches []*reach              // with these places at one of their ends
}

// spot is one of the positions.
type spot struct {
	api.Position              // the latest report
	found        api.Position // the first report
	cell         cell
	in           map[api.ClusterID]int // number of instances
	all          int                   // their sum
}

// cell is a region of the earth and of the latency space that counts as one position. Its size is
// about 1 km on the earth, and a sixteenth of the distance from the origin in latency.
type cell struct {
	located, known bool
	lat, lon       int32
	scale          int
	height         int32
	vec            [vivaldi.Dimensions]int32
}

func cellOf(p *api.Position) (c cell) {
	if p.Geo != nil {
		const degrees = 0.01
		c.located, c.lat, c.lon = true, int32(math.Floor(p.Geo.Lat/degrees)), int32(math.Floor(p.Geo.Lon/degrees))
	}
	if p.Coord == nil {
		return c
	}
	sum := 0.0
	for _, v := range p.Coord.Vec {
		sum += v * v
	}
	const finest, parts = 1e-3, 16
	c.known, c.scale = true, int(math.Floor(math.Log2(max(math.Sqrt(sum)+p.Coord.Height, finest))))
	width := math.Ldexp(1.0/parts, c.scale)
	for i, v := range p.Coord.Vec {
		c.vec[i] = int32(math.Floor(v / width))
	}
	c.height = int32(math.Floor(p.Coord.Height / width))
	return c
}

// Locate updates the position of an instance, and reports whether it changed.
func (m *Machine) Locate(in Instance) bool {
	p, it := &m.of(in.ID).places, m.instances[in.ID]
	at := in.Cluster
	if in.Leaving {
		at = ""
	}
	s := it.spot
	if s != nil && at == it.countedIn && in.Position != nil && near(&s.found, in.Position) {
		s.Position = *in.Position
		return false
	}
	if s == nil && at == it.countedIn && in.Position == nil {
		return false
	}
	p.remove(it)
	it.spot, it.countedIn = nil, at
	switch {
	case at == "":
	case in.Position == nil:
		if p.unknown == nil {
			p.unknown = map[api.ClusterID]int{}
		}
		p.unknown[at]++
	default:
		p.add(it, in.Position)
	}
	return it.spot != s
}

func (p *places) add(it *instance, at *api.Position) {
	k := cellOf(at)
	s := p.at[k]
	if s == nil {
		if p.at == nil {
			p.at = map[cell]*spot{}
		}
		s = &spot{found: *at, cell: k, in: map[api.ClusterID]int{}}
		p.at[k] = s
		p.spots = append(p.spots, s)
		for _, r := range p.reaches {
			r.count(p, s, 1)
		}
	}
	s.Position = *at
	s.in[it.countedIn]++
	s.all++
	it.spot = s
}

func (p *places) remove(it *instance) {
	s := it.spot
	switch {
	case it.countedIn == "":
		return
	case s == nil:
		if p.unknown[it.countedIn]--; p.unknown[it.countedIn] <= 0 {
			delete(p.unknown, it.countedIn)
		}
		return
	}
	if s.in[it.countedIn]--; s.in[it.countedIn] <= 0 {
		delete(s.in, it.countedIn)
	}
	if s.all--; s.all > 0 {
		return
	}
	delete(p.at, s.cell)
	p.spots = slices.DeleteFunc(p.spots, func(o *spot) bool { return o == s })
	for _, r := range p.reaches {
		r.count(p, s, -1)
	}
}

// outside returns the positions with instances in other clusters.
func (p *places) outside(cl api.ClusterID) (at []api.Position) {
	for _, s := range p.spots {
		if s.all > s.in[cl] {
			at = append(at, s.Position)
		}
	}
	return at
}

// measurable returns the positions to which a link can be measured. If there are more than limit,
// it returns none, and all is false.
func (p *places) measurable(l sched.Link, limit int) (at []api.Position, all bool) {
	for _, s := range p.spots {
		if !measures(l, &s.Position) {
			continue
		}
		if len(at) == limit {
			return nil, false
		}
		at = append(at, s.Position)
	}
	return at, true
}

// unmeasurable returns the clusters with instances to which the link cannot be measured.
func (p *places) unmeasurable(l sched.Link) []api.ClusterID {
	if len(p.unknown) == 0 && !slices.ContainsFunc(p.spots, func(s *spot) bool { return !measures(l, &s.Position) }) {
		return nil
	}
	in := map[api.ClusterID]bool{}
	for id := range p.unknown {
		in[id] = true
	}
	for _, s := range p.spots {
		if !measures(l, &s.Position) {
			for id := range s.in {
				in[id] = true
			}
		}
	}
	return step.Keys(in)
}

// reach counts, for each position of a service that has a link, the positions of the service at the
// other end that are near enough.
type reach struct {
	link sched.Link
	from *places // the places of the service that has the link
	to   *places // the places of the service at the other end
	near map[*spot]int
	open int // number of positions in from with none near
}

func newReach(l sched.Link, from, to *places) *reach {
	r := &reach{link: l, from: from, to: to, near: map[*spot]int{}}
	for _, s := range from.spots {
		r.count(from, s, 1)
	}
	from.reaches, to.reaches = append(from.reaches, r), append(to.reaches, r)
	return r
}

// count updates the counts after the position s was added to (by is 1) or removed from (by is -1)
// one end.
func (r *reach) count(end *places, s *spot, by int) {
	switch {
	case !measures(r.link, &s.found):
	case end == r.to:
		for _, o := range r.from.spots {
			if measures(r.link, &o.found) && within(r.link, o.found, s.found) {
				r.set(o, r.near[o]+by)
			}
		}
	case by < 0:
		r.set(s, -1)
	default:
		n := 0
		for _, o := range r.to.spots {
			if measures(r.link, &o.found) && within(r.link, s.found, o.found) {
				n++
			}
		}
		r.set(s, n)
	}
}

// set sets the number of positions near s. If n is below 0, it removes s.
func (r *reach) set(s *spot, n int) {
	if was, had := r.near[s]; had && was == 0 {
		r.open--
	}
	if n < 0 {
		delete(r.near, s)
		return
	}
	if r.near[s] = n; n == 0 {
		r.open++
	}
}

// unserved returns the positions that would have no position near enough without the instance but.
// If there are more than limit, it returns none, and all is false.
func (r *reach) unserved(but *instance, limit int) (at []api.Position, all bool) {
	alone := but.spot != nil && but.spot.all == 1 && measures(r.link, &but.spot.found)
	if r.open > limit {
		return nil, false
	}
	if r.open == 0 && !alone {
		return nil, true
	}
	for _, s := range r.from.spots {
		n, ok := r.near[s]
		if !ok || n > 1 || n == 1 && !(alone && within(r.link, s.found, but.spot.found)) {
			continue
		}
		if len(at) == limit {
			return nil, false
		}
		at = append(at, s.Position)
	}
	return at, true
}

func measures(l sched.Link, p *api.Position) bool {
	return p != nil && (l.RTT > 0 && p.Coord != nil || l.Km > 0 && p.Geo != nil)
}

func within(l sched.Link, a, b api.Position) bool {
	if l.Km > 0 {
		return a.Geo.Kilometres(*b.Geo) <= l.Km
	}
	return vivaldi.Distance(*a.Coord, *b.Coord) <= l.RTT
}

// near reports whether two positions count as the same: they differ at most by the jitter of
// coordinates or by a small movement of a mobile machine.
func near(a, b *api.Position) bool {
	if a == nil || b == nil {
		return a == b
	}
	const km, fraction = 1.0, 0.2
	switch {
	case (a.Geo == nil) != (b.Geo == nil), (a.Coord == nil) != (b.Coord == nil):
		return false
	case a.Geo != nil && a.Geo.Kilometres(*b.Geo) > km:
		return false
	}
	return a.Coord == nil || !vivaldi.Moved(*b.Coord, *a.Coord, fraction)
}

// reachesFarther reports whether a cluster whose centre moved and whose radius grew may reach positions
// that it did not reach before, beyond the jitter of coordinates.
func reachesFarther(was, is *api.Coordinate, grown time.Duration) bool {
	const jitter = time.Millisecond
	return vivaldi.Distance(*was, *is)+grown > jitter
}
