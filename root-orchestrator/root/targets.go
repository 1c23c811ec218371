package root

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// assignment is what a cluster is told of the instance, with where its links lead.
func (c *Core) assignment(in *instance, cl *cluster) api.Assignment {
	a := in.assignment(cl)
	s := c.service(in.ID.Service())
	a.Watched = s.link.watched
	if !s.link.watched && len(s.link.areas) == 0 {
		return a
	}
	id := cl.Info.ID
	at, told := s.link.told[id]
	if !told {
		if s.link.told == nil {
			s.link.told = map[api.ClusterID][]api.Target{}
		}
		at = c.targets(s, cl)
		s.link.told[id] = at
	}
	a.Targets = at
	return a
}

// targets are where the instances are, in other clusters, that those of the
// service in this one are measured against or are measured against them; and the
// middle of clusters that lie in an area as a whole, for links to it. Where only a
// part of a cluster is in an area, its aggregate does not say which.
func (c *Core) targets(s *service, cl *cluster) (out []api.Target) {
	for _, k := range s.link.kin {
		t := c.services[k.id]
		if t == nil || !k.put && len(k.in) == 0 {
			continue
		}
		if at := nearest(t.placesBut(cl.Info.ID), cl.Agg.Latency, s.mostTold()); len(at) > 0 {
			out = append(out, api.Target{Service: t.id, Positions: at})
		}
	}
	for _, area := range s.link.areas {
		if at := nearest(c.placesIn(area, cl), cl.Agg.Latency, s.mostTold()); len(at) > 0 {
			out = append(out, api.Target{Area: area, Positions: at})
		}
	}
	return out
}

// placesBut are the known places of the service's instances that are not in a
// cluster, each once.
func (s *service) placesBut(cl api.ClusterID) (at []api.Position) {
	for _, id := range step.Keys(s.instances) {
		in := s.instances[id]
		if in.Leaving || in.Cluster == cl || in.Cluster == "" || in.Position == nil {
			continue
		}
		if !slices.ContainsFunc(at, func(p api.Position) bool { return near(&p, in.Position) }) {
			at = append(at, *in.Position)
		}
	}
	return at
}

func (c *Core) placesIn(area string, but *cluster) (at []api.Position) {
	for _, id := range step.Keys(c.clusters) {
		cl := c.clusters[id]
		if cl == but || cl.Agg.Latency == nil || cl.out() != "" || len(cl.Agg.Slots) == 0 {
			continue
		}
		if !slices.ContainsFunc(cl.Agg.Slots, func(s api.Slot) bool { return !slices.Contains(s.Areas, area) }) {
			at = append(at, api.Position{Coord: &cl.Agg.Latency.Center})
		}
	}
	return at
}

// mostTold bounds the places that each assignment of the service carries: it is
// sent with all of them.
func (s *service) mostTold() int {
	const many, few = 256, 4
	if len(s.instances) > many {
		return few
	}
	return mostPositions
}

// nearest are so many of the places at most, those nearest to the cluster where
// that can be told.
func nearest(at []api.Position, to *api.CoordSpread, most int) []api.Position {
	if len(at) > most && to != nil {
		slices.SortStableFunc(at, func(a, b api.Position) int {
			if a.Coord == nil || b.Coord == nil {
				return cmp.Compare(known(b.Coord), known(a.Coord))
			}
			return cmp.Compare(vivaldi.Distance(*a.Coord, to.Center), vivaldi.Distance(*b.Coord, to.Center))
		})
	}
	return at[:min(len(at), most)]
}

func known(c *api.Coordinate) int {
	if c == nil {
		return 0
	}
	return 1
}

// linkedMoved has the clusters told that have to do with a service's places.
func (c *Core) linkedMoved(id api.ServiceID) {
	s := c.services[id]
	if s == nil {
		return
	}
	for _, k := range s.link.kin {
		if k.put || len(k.in) > 0 {
			c.links.told[k.id] = true
		}
	}
}

// areasChanged has the clusters told whose instances have links to areas.
func (c *Core) areasChanged() {
	for id := range c.links.areas {
		c.links.told[id] = true
	}
}

// tellLinked tells clusters where links lead, if that has changed by much, and
// tries again what waits for a place near it.
func (c *Core) tellLinked() {
	for _, id := range step.Keys(c.links.told) {
		delete(c.links.told, id)
		s := c.services[id]
		if s == nil || s.app == nil {
			continue
		}
		if due := s.link.toldAt.Add(tellEvery); !s.link.toldAt.IsZero() && due.After(c.now) {
			c.timers.SetEarlier(timerKey{what: timerTell, service: id}, due)
			continue
		}
		s.link.toldAt = c.now
		if !c.tellAbout(s) {
			s.link.toldAt = c.now.Add(lookEvery - tellEvery)
		}
	}
}

// tellAbout reports whether there was anything to tell.
func (c *Core) tellAbout(s *service) bool {
	changed := map[api.ClusterID]bool{}
	for _, host := range step.Keys(s.peers) {
		cl := c.clusters[api.ClusterID(host)]
		if at := c.targets(s, cl); differ(s.link.told[cl.Info.ID], at) {
			if s.link.told == nil {
				s.link.told = map[api.ClusterID][]api.Target{}
			}
			s.link.told[cl.Info.ID] = at
			changed[cl.Info.ID] = true
		}
	}
	for id := range s.link.told {
		if s.peers[string(id)] == 0 {
			delete(s.link.told, id)
		}
	}
	for _, id := range step.Keys(s.instances) {
		in := s.instances[id]
		for _, at := range in.clusters() {
			if cl := c.clusters[at]; cl != nil && changed[at] && cl.assigned[id] == in {
				c.touch(cl)
				cl.put[id] = true
				in.putAt(cl)
			}
		}
		if c.waiting.has(id) && in.Cluster == "" {
			c.tryPlace(in)
		}
	}
	return len(changed) > 0
}

// clusters are those that have the instance, or are to.
func (in *instance) clusters() []api.ClusterID {
	if in.Next != nil {
		return []api.ClusterID{in.Cluster, in.Next.Cluster}
	}
	return []api.ClusterID{in.Cluster}
}

// differ reports whether targets are others than those, or have moved by much.
func differ(a, b []api.Target) bool {
	return !slices.EqualFunc(a, b, func(x, y api.Target) bool {
		return x.Service == y.Service && x.Area == y.Area &&
			slices.EqualFunc(x.Positions, y.Positions, func(p, q api.Position) bool { return near(&p, &q) })
	})
}

// credible is an aggregate without what cannot be: a cluster is another operator's.
func credible(a api.Aggregate) api.Aggregate {
	if l := a.Latency; l != nil && (!vivaldi.Valid(&l.Center) || l.Radius < 0) {
		a.Latency = nil
	}
	if slices.ContainsFunc(a.Hull, func(g api.Geo) bool { return !g.Valid() }) {
		a.Hull = nil // and so anywhere
		a.Unplaced = a.Nodes
	}
	return a
}

// plausible is an observation without a position that cannot be.
func plausible(o api.Observed) api.Observed {
	p := o.Position
	if p == nil {
		return o
	}
	if p.Coord != nil && !vivaldi.Valid(p.Coord) || p.Geo != nil && !p.Geo.Valid() {
		o.Position = nil
	}
	return o
}
