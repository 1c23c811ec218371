package placement

import (
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// bounds are the links of an instance and those of its siblings to it, with the
// places of their other ends. A link to a service of which nothing is anywhere
// does not bind yet: it is minded when that is placed.
func (m *Machine) bounds(p placing) (out []sched.Bound) {
	self := p.id.Service()
	for _, l := range p.demand.links {
		if b, binds := m.bound(self, l, p.targets, ""); binds {
			out = append(out, b)
		}
	}
	return append(out, m.wantedNear(p)...)
}

// bound is one link of a service, and whether it binds now: for any node, or for that
// one alone.
func (m *Machine) bound(self api.ServiceID, l sched.Link, targets []api.Target, only api.NodeID) (sched.Bound, bool) {
	switch {
	case l.User != "":
		return m.latency.UserBound(l), true
	case l.Area != "":
		b := l.Bound()
		if p := m.areas.places[strings.ToLower(l.Area)]; p != nil {
			b.Places = []*sched.Places{p}
		}
		for _, t := range targets {
			if strings.EqualFold(t.Area, l.Area) {
				b.Points = append(b.Points, t.Positions...)
			}
		}
		if len(b.Points)+len(b.Places) == 0 {
			return l.Unknown("nobody knows where it is"), true
		}
		return b, true
	}
	b := l.Bound()
	for _, id := range step.Keys(m.apps[self.App()]) {
		if s := m.services[id]; s.places.Len() > 0 && l.Names(self, id) {
			b.Places = append(b.Places, &s.places)
		}
	}
	for _, t := range targets {
		if t.Service != "" && l.Names(self, t.Service) {
			b.Points = append(b.Points, t.Positions...)
		}
	}
	if l.RTT > 0 {
		m.latency.Measured(&b, self, l, targets, only)
	}
	return b, len(b.Points)+len(b.Places) > 0
}

// position is where the node is, as far as that is known.
func (n *node) position() api.Position {
	return api.Position{Node: n.Info.ID, Geo: n.traits.geo, Coord: n.coord}
}

// keeps reports whether two places keep a link, as far as is known.
func keeps(l sched.Link, a, b api.Position) bool {
	if a.Node != "" && a.Node == b.Node {
		return true
	}
	if l.Km > 0 {
		return a.Geo != nil && b.Geo != nil && a.Geo.Kilometres(*b.Geo) <= l.Km
	}
	return a.Coord != nil && b.Coord != nil && vivaldi.Distance(*a.Coord, *b.Coord) <= l.RTT
}
