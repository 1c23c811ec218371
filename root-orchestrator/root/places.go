package root

import (
	"math"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// places are where a service's instances are, each place once however many are
// there. They are kept as instances come, move and go: thousands of decisions in
// one step read them.
type places struct {
	spots   []*spot // in the order in which they were found
	at      map[cell]*spot
	unknown map[api.ClusterID]int // instances of which their cluster has yet to say where they are
	reaches []*reach              // in which they are one of both ends
}

// spot is one place.
type spot struct {
	api.Position              // as it was said last
	found        api.Position // as it was said first
	cell         cell
	in           map[api.ClusterID]int // instances
	all          int                   // Σ of them
}

// cell is a piece of the earth and of the latency space in which all is one place:
// about 1 km, and a sixth of the distance from the origin.
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

// locate notes where the instance is, or that it is nowhere, and reports whether
// that is another place than before.
func (c *Core) locate(in *instance) bool {
	p := &c.service(in.ID.Service()).places
	at := in.Cluster
	if in.Leaving {
		at = ""
	}
	s := in.spot
	if s != nil && at == in.spotIn && in.Position != nil && near(&s.found, in.Position) {
		s.Position = *in.Position // it is where it was, by and large
		return false
	}
	if s == nil && at == in.spotIn && in.Position == nil {
		return false
	}
	p.remove(in)
	in.spot, in.spotIn = nil, at
	switch {
	case at == "":
	case in.Position == nil:
		if p.unknown == nil {
			p.unknown = map[api.ClusterID]int{}
		}
		p.unknown[at]++
	default:
		p.add(in)
	}
	return in.spot != s
}

func (p *places) add(in *instance) {
	k := cellOf(in.Position)
	s := p.at[k]
	if s == nil {
		if p.at == nil {
			p.at = map[cell]*spot{}
		}
		s = &spot{found: *in.Position, cell: k, in: map[api.ClusterID]int{}}
		p.at[k] = s
		p.spots = append(p.spots, s)
		for _, r := range p.reaches {
			r.count(p, s, 1)
		}
	}
	s.Position = *in.Position
	s.in[in.spotIn]++
	s.all++
	in.spot = s
}

func (p *places) remove(in *instance) {
	s := in.spot
	switch {
	case in.spotIn == "":
		return
	case s == nil:
		if p.unknown[in.spotIn]--; p.unknown[in.spotIn] <= 0 {
			delete(p.unknown, in.spotIn)
		}
		return
	}
	if s.in[in.spotIn]--; s.in[in.spotIn] <= 0 {
		delete(s.in, in.spotIn)
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

// but are the places at which something is that is not in the cluster.
func (p *places) but(cl api.ClusterID) (at []api.Position) {
	for _, s := range p.spots {
		if s.all > s.in[cl] {
			at = append(at, s.Position)
		}
	}
	return at
}

// measurable are the places that a link can be measured to; of more than so many
// it gives none, and says so.
func (p *places) measurable(l sched.Link, most int) (at []api.Position, all bool) {
	for _, s := range p.spots {
		if !measures(l, &s.Position) {
			continue
		}
		if len(at) == most {
			return nil, false
		}
		at = append(at, s.Position)
	}
	return at, true
}

// vague are the clusters that have instances which the link cannot be measured to.
func (p *places) vague(l sched.Link) []api.ClusterID {
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

// reach is a link between two services, and how many places of the one that it
// leads to are near enough to each of the one that has it.
type reach struct {
	link sched.Link
	of   *places       // of the service that has the link
	by   *places       // of the one that it leads to
	near map[*spot]int // of of's
	open int           // how many of these have none
}

func newReach(l sched.Link, of, by *places) *reach {
	r := &reach{link: l, of: of, by: by, near: map[*spot]int{}}
	for _, s := range of.spots {
		r.count(of, s, 1)
	}
	of.reaches, by.reaches = append(of.reaches, r), append(by.reaches, r)
	return r
}

// count notes that a place at one of both ends was found, or is no more.
func (r *reach) count(end *places, s *spot, by int) {
	switch {
	case !measures(r.link, &s.found):
	case end == r.by:
		for _, o := range r.of.spots {
			if measures(r.link, &o.found) && within(r.link, o.found, s.found) {
				r.set(o, r.near[o]+by)
			}
		}
	case by < 0:
		r.set(s, -1)
	default:
		n := 0
		for _, o := range r.by.spots {
			if measures(r.link, &o.found) && within(r.link, s.found, o.found) {
				n++
			}
		}
		r.set(s, n)
	}
}

// set has a place have so many near it; below 0 it is no more.
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

// unserved are the places that nobody but the instance is near enough to; of more
// than so many it gives none, and says so.
func (r *reach) unserved(but *instance, most int) (at []api.Position, all bool) {
	alone := but.spot != nil && but.spot.all == 1 && measures(r.link, &but.spot.found)
	if r.open > most {
		return nil, false
	}
	if r.open == 0 && !alone {
		return nil, true
	}
	for _, s := range r.of.spots {
		n, ok := r.near[s]
		if !ok || n > 1 || n == 1 && !(alone && within(r.link, s.found, but.spot.found)) {
			continue
		}
		if len(at) == most {
			return nil, false
		}
		at = append(at, s.Position)
	}
	return at, true
}
