package cluster

import (
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// maxPoints bounds how many places a bound is measured against. Of more the most
// scattered are taken: a place near one that was left out may count as too far,
// and none that is too far counts as near.
const maxPoints = 64

// bounds are the links of an instance and those of its siblings to it, with the
// places of their other ends. A link to a service of which nothing is anywhere
// does not bind yet: it is minded when that is placed.
func (c *Core) bounds(p placing) (out []sched.Bound) {
	self := p.id.Service()
	for _, l := range p.demand.links {
		if b, binds := c.bound(self, l, p.targets); binds {
			out = append(out, b)
		}
	}
	return append(out, c.wantedNear(p)...)
}

// bound is one link of a service, and whether it binds now.
func (c *Core) bound(self api.ServiceID, l sched.Link, targets []api.Target) (sched.Bound, bool) {
	switch {
	case l.User != "":
		return c.userBound(l), true
	case l.Area != "":
		points := c.areaPoints(l.Area)
		for _, t := range targets {
			if strings.EqualFold(t.Area, l.Area) {
				points = append(slices.Clip(points), t.Positions...)
			}
		}
		if len(points) == 0 {
			return l.Unknown("nobody knows where it is"), true
		}
		return l.Bound(points...), true
	}
	points := c.servicePoints(self, l, targets)
	return l.Bound(points...), len(points) > 0
}

// servicePoints are the places of the services that a link names, seen from self.
func (c *Core) servicePoints(self api.ServiceID, l sched.Link, targets []api.Target) (points []api.Position) {
	for id := range c.apps[self.App()] {
		if l.Names(self, id) {
			points = c.appendPlaces(points, id, "")
		}
	}
	slices.SortFunc(points, comparePositions)
	points = scattered(points, maxPoints)
	for _, t := range targets {
		if t.Service != "" && l.Names(self, t.Service) {
			points = append(points, t.Positions...)
		}
	}
	return points
}

// appendPlaces adds where a service's instances are, but for one; each node once.
func (c *Core) appendPlaces(points []api.Position, id api.ServiceID, but api.InstanceID) []api.Position {
	s := c.services[id]
	for name, n := range s.peers {
		if but != "" && n == 1 {
			if in := s.instances[but]; in != nil && string(in.Node) == name {
				continue
			}
		}
		if n := c.nodes[api.NodeID(name)]; n != nil {
			points = append(points, n.position())
		}
	}
	return points
}

// position is where the node is, as far as that is known.
func (n *node) position() api.Position { return api.Position{Geo: n.traits.geo, Coord: n.coord} }

// comparePositions orders positions, so that an answer does not hang on a map's order.
func comparePositions(a, b api.Position) int {
	return slices.Compare(numbers(a), numbers(b))
}

func numbers(p api.Position) []float64 {
	var out []float64
	if p.Geo != nil {
		out = append(out, p.Geo.Lat, p.Geo.Lon)
	}
	if p.Coord != nil {
		out = append(append(out, p.Coord.Vec...), p.Coord.Height)
	}
	return out
}

// scattered are at most so many of the points, each as far as can be from those
// before (Gonzalez 1985: no point is more than twice as far from them as it must be).
func scattered(points []api.Position, most int) []api.Position {
	if len(points) <= most {
		return points
	}
	far := make([]float64, len(points))
	for i := range far {
		far[i] = -1
	}
	out, next := make([]api.Position, 0, most), 0
	for len(out) < most {
		at := points[next]
		out, far[next] = append(out, at), 0
		best := 0.0
		for i := range points {
			if d := apart(at, points[i]); far[i] < 0 || d < far[i] {
				far[i] = d
			}
			if far[i] > best {
				best, next = far[i], i
			}
		}
		if best == 0 {
			break
		}
	}
	return out
}

// apart is how far two places are from each other, by what is known of both: a
// millisecond counts as a hundred kilometres of fibre.
func apart(a, b api.Position) (far float64) {
	if a.Coord != nil && b.Coord != nil {
		far = vivaldi.Distance(*a.Coord, *b.Coord).Seconds() * 1e5
	}
	if a.Geo != nil && b.Geo != nil {
		far = max(far, a.Geo.Kilometres(*b.Geo))
	}
	return far
}

// keeps reports whether two places keep a link, as far as is known.
func keeps(l sched.Link, a, b api.Position) bool {
	if l.Km > 0 {
		return a.Geo != nil && b.Geo != nil && a.Geo.Kilometres(*b.Geo) <= l.Km
	}
	return a.Coord != nil && b.Coord != nil && vivaldi.Distance(*a.Coord, *b.Coord) <= l.RTT
}

// maxStrict is to how many places of one sibling an instance must be near at once.
const maxStrict = 4

// wantedNear are the links of placed siblings to this service, of which none of
// its other instances is near enough: it has to be near to each of them or, where
// they are many or that cannot be, to one of them. The others then move, or
// the next instance serves them.
func (c *Core) wantedNear(p placing) (out []sched.Bound) {
	self := p.id.Service()
	var others []api.Position
	if len(c.linkers[self.App()]) > 0 && c.services[self] != nil {
		others = c.appendPlaces(nil, self, p.id)
	}
	for _, other := range step.Keys(c.linkers[self.App()]) {
		s := c.services[other]
		if other == self {
			continue
		}
		for _, id := range step.Keys(s.instances) {
			in := s.instances[id]
			if in.Node == "" || in.Leaving || in.Withdrawn {
				continue
			}
			for _, l := range in.demand.links {
				if !l.Names(other, self) {
					continue
				}
				here := c.nodes[in.Node].position()
				near := func(at api.Position) bool { return keeps(l, here, at) }
				if slices.ContainsFunc(others, near) || slices.ContainsFunc(in.Want.Targets, func(t api.Target) bool {
					return t.Service == self && slices.ContainsFunc(t.Positions, near)
				}) {
					continue
				}
				b := l.Bound(here)
				b.To = strings.TrimPrefix(string(other), string(other.App())+".")
				out = append(out, b)
			}
		}
	}
	if p.loose || len(out) > maxStrict {
		out = nearestOf(out)
	}
	return out
}

// nearestOf makes one bound of all that go to the same service with the same
// threshold: to the nearest of them.
func nearestOf(bounds []sched.Bound) (out []sched.Bound) {
	for _, b := range bounds {
		i := slices.IndexFunc(out, func(o sched.Bound) bool { return o.To == b.To && o.RTT == b.RTT && o.Km == b.Km })
		if i < 0 {
			out = append(out, b)
			continue
		}
		out[i].Points = append(out[i].Points, b.Points...)
	}
	for i := range out {
		out[i].Points = scattered(out[i].Points, maxPoints)
	}
	return out
}
