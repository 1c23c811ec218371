package root

import (
	"cmp"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// assignment is what a cluster is told of the instance, with where its links lead.
func (c *Core) assignment(in *instance, cl *cluster) api.Assignment {
	a := in.assignment(cl)
	a.Moves = api.MergeMoves(in.Moves, nil, c.wall)
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
		if at := nearest(t.places.but(cl.Info.ID), cl.Agg.Latency, s.mostTold()); len(at) > 0 {
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
// that can be told, in the order that they have: who is nearer than whom is no news.
func nearest(at []api.Position, to *api.CoordSpread, most int) []api.Position {
	if len(at) <= most || to == nil {
		return at[:min(len(at), most)]
	}
	type far struct {
		i  int
		by time.Duration
	}
	all := make([]far, len(at))
	for i, p := range at {
		all[i] = far{i, 1<<63 - 1}
		if p.Coord != nil {
			all[i].by = vivaldi.Distance(*p.Coord, to.Center)
		}
	}
	slices.SortFunc(all, func(a, b far) int { return cmp.Or(cmp.Compare(a.by, b.by), a.i-b.i) })
	all = all[:most]
	slices.SortFunc(all, func(a, b far) int { return a.i - b.i })
	out := make([]api.Position, most)
	for i, f := range all {
		out[i] = at[f.i]
	}
	return out
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
	c.stuck = stuck{}
	nowhere := map[api.Revision]bool{}
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
		if c.waiting.has(id) && in.Cluster == "" && !nowhere[in.SpecRev] {
			c.tryPlace(in)
			nowhere[in.SpecRev] = c.waiting.has(id) && len(in.refusals) == 0 && !in.notUntil.After(c.now)
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
