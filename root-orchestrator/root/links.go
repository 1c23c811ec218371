package root

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// serviceLinks are what binds a service's places to those of others of its
// application, as the newest SLA has it.
type serviceLinks struct {
	kin     []kin // in the order of their ids
	watched bool  // somebody is measured against its instances
	areas   []string
	parted  bool // where it is decides by cluster who else may be there

	told   map[api.ClusterID][]api.Target // what its instances' clusters were told last
	toldAt time.Time
}

// kin is another service that has to do with this one.
type kin struct {
	id  api.ServiceID
	in  []*reach // its links to this one
	put bool     // this one has links to it
	// pull is how much better a cluster is that has instances of it, beside a plugin's
	// score; 0 where no link asks for nearness.
	pull  float64
	apart bool // by cluster, as either of both asks
}

// links are the services about which clusters are to be told anew where the other
// ends of their links are, and the services with links to areas.
type links struct {
	told  map[api.ServiceID]bool
	areas map[api.ServiceID]bool
}

// tellEvery bounds how often clusters are told where a service's links lead.
const (
	tellEvery = 10 * time.Second
	lookEvery = time.Second // whether there is anything to tell
)

// mostPositions bounds what is told of one end of a link, mostPoints the places
// that the root itself measures against: with more of them anybody may be near one.
// mostCentres bounds the clusters that stand for an area, or for who is in them.
const (
	mostPositions = 16
	mostPoints    = 64
	mostCentres   = 32
)

// relate finds out which services of the application have to do with which.
func (c *Core) relate(a *app) {
	all := c.servicesByID(a)
	if c.links.told == nil {
		c.links = links{map[api.ServiceID]bool{}, map[api.ServiceID]bool{}}
	}
	for _, s := range all {
		old := s.link
		s.link, s.places.reaches = serviceLinks{told: old.told, toldAt: old.toldAt}, nil
		delete(c.links.areas, s.id)
		s.link.parted = slices.ContainsFunc(sched.SpreadsOf(s.spec), func(d sched.Spread) bool { return d.By == "cluster" })
		for _, l := range sched.LinksOf(s.spec) {
			if l.Area != "" && !slices.Contains(s.link.areas, l.Area) {
				s.link.areas = append(s.link.areas, l.Area)
				c.links.areas[s.id] = true
			}
		}
	}
	for _, s := range all {
		for _, t := range all {
			if s == t || !related(s.spec) && !related(t.spec) {
				continue
			}
			k := kin{id: t.id}
			out, in := linksTo(s, t.id), linksTo(t, s.id)
			k.put = len(out) > 0
			for _, l := range in {
				k.in = append(k.in, newReach(l, &t.places, &s.places))
			}
			k.pull = max(pullOf(out, s, t.id), pullOf(in, t, s.id))
			k.apart = apart(s, t.id) || apart(t, s.id)
			s.link.parted = s.link.parted || k.apart
			if k.put || len(in) > 0 || k.pull > 0 || k.apart {
				s.link.kin = append(s.link.kin, k)
				s.link.watched = s.link.watched || k.put || len(in) > 0
			}
		}
	}
	for _, s := range all {
		if s.link.watched || len(s.link.areas) > 0 {
			c.links.told[s.id] = true
		}
	}
}

func (c *Core) servicesByID(a *app) []*service {
	var out []*service
	for _, id := range step.Keys(a.Replicas) {
		if s := c.services[id]; s != nil && s.spec != nil {
			out = append(out, s)
		}
	}
	return out
}

// related reports whether a service's SLA says anything about others.
func related(m *api.Microservice) bool {
	return len(m.Connectivity) > 0 || slices.ContainsFunc(m.Constraints, func(k api.Constraint) bool {
		return k.Type == api.ConstrainLatency && k.Service != "" || k.Type == api.ConstrainApart
	})
}

func linksTo(s *service, id api.ServiceID) (out []sched.Link) {
	for _, l := range sched.LinksOf(s.spec) {
		if l.Names(s.id, id) {
			out = append(out, l)
		}
	}
	return out
}

func apart(s *service, id api.ServiceID) bool {
	return slices.ContainsFunc(sched.ApartsOf(s.spec), func(a sched.Apart) bool { return a.By == "cluster" && a.Names(s.id, id) })
}

// pullOf grows as the links' bounds get small. Plugins score within about 1.
func pullOf(links []sched.Link, s *service, id api.ServiceID) float64 {
	pull := 0.0
	for _, l := range links {
		switch {
		case l.RTT > 0:
			pull = max(pull, 0.25+4*20/(20+float64(l.RTT)/float64(time.Millisecond)))
		case l.Km > 0:
			pull = max(pull, 0.25+4*100/(100+l.Km))
		}
	}
	for _, to := range s.spec.Connectivity {
		if (sched.Link{Service: to.Target}).Names(s.id, id) {
			pull = max(pull, 0.5)
		}
	}
	return pull
}

// pulled is a plugin that prefers the clusters where an instance's kin is.
type pulled struct {
	sched.Plugin
	to map[string]float64
}

func (p pulled) Score(req *sched.Request, c *sched.Candidate) float64 {
	return p.Plugin.Score(req, c) + p.to[c.ID]
}

// plugin is what ranks the clusters for the instance.
func (c *Core) plugin(in *instance) sched.Plugin {
	var to map[string]float64
	for _, k := range c.service(in.ID.Service()).link.kin {
		if t := c.services[k.id]; t != nil && k.pull > 0 {
			for id := range t.peers {
				if to == nil {
					to = map[string]float64{}
				}
				to[id] = max(to[id], k.pull)
			}
		}
	}
	if to == nil {
		return c.cfg.Plugin
	}
	return pulled{c.cfg.Plugin, to}
}

// bind adds to the request where the instance's links lead, and which clusters
// have enough of it, or what it must be apart from.
func (c *Core) bind(req *sched.Request, in *instance, s *service) {
	for _, l := range sched.LinksOf(&in.Spec) {
		switch {
		case l.Service != "":
			// A link whose other end is nowhere yet binds that one, when it is placed.
			to := c.named(s, l)
			if l.Way && slices.ContainsFunc(to, func(t *service) bool { return len(t.peers) > 0 }) {
				req.SearchFor(l.Convergence)
			}
			if at, all := positions(l, to); all {
				if b, ok := c.boundAt(l, at, to); ok {
					req.Bounds = append(req.Bounds, b)
				}
			}
		case l.Area != "":
			if b, ok := c.areaBound(l); ok {
				req.Bounds = append(req.Bounds, b)
			}
		}
		// Where a user is, clusters find out by measuring.
	}
	for _, k := range s.link.kin {
		t := c.services[k.id]
		if t == nil || t.app == nil {
			continue
		}
		for _, r := range k.in {
			// The next one is for those that nobody is near enough to.
			at, all := r.unserved(in, mostPoints)
			if !all || len(at) == 0 && (len(s.instances) > 1 || len(t.places.spots) > 0) {
				continue
			}
			if b, ok := c.boundAt(r.link, at, []*service{t}); ok {
				req.Bounds = append(req.Bounds, r.link.WantedBy(t.id, b))
			}
		}
		if !k.apart {
			continue
		}
		for _, id := range step.Keys(t.peers) {
			req.Domains = append(req.Domains, sched.Domain{By: "cluster", Name: id, Apart: t.id.NameInApp(), Have: t.peers[id]})
		}
	}
	for _, spread := range sched.SpreadsOf(&in.Spec) {
		if spread.By != "cluster" {
			continue // within clusters, for these to see to
		}
		for _, id := range step.Keys(s.peers) {
			if n := s.peers[id]; n >= spread.Limit {
				req.Domains = append(req.Domains, sched.Domain{By: "cluster", Name: id, Have: n, Limit: spread.Limit})
			}
		}
	}
}

// positions are the known places of a link's other end, and whether these are all.
func positions(l sched.Link, to []*service) (at []api.Position, all bool) {
	for _, t := range to {
		more, all := t.places.measurable(l, mostPoints)
		if !all {
			return nil, false
		}
		at = append(at, more...)
	}
	return at, len(at) <= mostPoints
}

func measures(l sched.Link, p *api.Position) bool {
	return p != nil && (l.RTT > 0 && p.Coord != nil || l.Km > 0 && p.Geo != nil)
}

func within(l sched.Link, a, b api.Position) bool {
	if l.Km > 0 {
		return a.Geo.Kilometres(*b.Geo) <= l.Km
	}
	return distance(*a.Coord, *b.Coord) <= l.RTT
}

// areaBound is a link to an area: near enough to a cluster that may have nodes
// there, as far as that can be told from what clusters say of all their nodes.
func (c *Core) areaBound(l sched.Link) (sched.Bound, bool) {
	var there []*sched.Candidate
	for i, all := 0, c.table.All(); i < len(all); i++ {
		cand := &all[i]
		if slices.ContainsFunc(cand.Rooms, func(r sched.Room) bool { return slices.Contains(r.Areas, sched.Untold) }) {
			return sched.Bound{}, false // it may have nodes there
		}
		if !slices.ContainsFunc(cand.Rooms, func(r sched.Room) bool { return slices.Contains(r.Areas, l.Area) }) {
			continue
		}
		if cand.Coord == nil || len(there) == mostCentres {
			return sched.Bound{}, false // anybody may be near it
		}
		there = append(there, cand)
	}
	if len(there) == 0 {
		return sched.Bound{}, false // no cluster tells; theirs to say
	}
	return c.boundTo(l, there, nil), true
}

// named are the services of the application that a link of s names.
func (c *Core) named(s *service, l sched.Link) (out []*service) {
	for _, k := range s.link.kin {
		if t := c.services[k.id]; t != nil && l.Names(s.id, k.id) {
			out = append(out, t)
		}
	}
	return out
}

// boundAt is a link to some places, and to those instances of services that were
// placed just now: where these are, their clusters have yet to say, but it is in
// their clusters. Where anybody may be near it, there is no bound.
func (c *Core) boundAt(l sched.Link, at []api.Position, to []*service) (sched.Bound, bool) {
	var there []*sched.Candidate
	for _, t := range to {
		for _, id := range t.places.vague(l) {
			cand := c.table.Get(string(id))
			if slices.Contains(there, cand) {
				continue
			}
			if l.RTT == 0 || cand == nil || cand.Coord == nil || len(there) == mostCentres {
				return sched.Bound{}, false
			}
			there = append(there, cand)
		}
	}
	if len(there) == 0 {
		return l.Bound(at...), len(at) > 0
	}
	return c.boundTo(l, there, at), true
}

// boundTo is a link to somewhere in some clusters, or to places: as near as a
// candidate may be to the nearest of them.
func (c *Core) boundTo(l sched.Link, there []*sched.Candidate, at []api.Position) sched.Bound {
	b := l.Bound()
	b.Measured = map[string]time.Duration{}
	for i, all := 0, c.table.All(); i < len(all); i++ {
		cand := &all[i]
		if cand.Coord == nil {
			b.Measured[cand.ID] = 0
			continue
		}
		nearest := time.Duration(1<<63 - 1)
		for _, a := range there {
			d := time.Duration(0)
			if a.ID != cand.ID {
				d = max(0, distance(*a.Coord, *cand.Coord)-a.Radius-cand.Radius)
			}
			nearest = min(nearest, d)
		}
		b.Measured[cand.ID] = nearest
	}
	for _, a := range there {
		b.Points = append(b.Points, api.Position{Coord: a.Coord})
	}
	slices.SortFunc(b.Points, func(x, y api.Position) int { return slices.Compare(x.Coord.Vec, y.Coord.Vec) })
	b.Points = append(b.Points, at...)
	return b
}

func distance(a, b api.Coordinate) time.Duration { return vivaldi.Distance(a, b) }

// near reports whether two positions are the same but for the jitter of
// coordinates, or for a step of a machine on the move.
func near(a, b *api.Position) bool {
	if a == nil || b == nil {
		return a == b
	}
	const closeBy, fraction = 1.0, 0.2 // km, and of the distance
	switch {
	case (a.Geo == nil) != (b.Geo == nil), (a.Coord == nil) != (b.Coord == nil):
		return false
	case a.Geo != nil && a.Geo.Kilometres(*b.Geo) > closeBy:
		return false
	case a.Coord != nil && vivaldi.Moved(*b.Coord, *a.Coord, fraction):
		return false
	}
	return true
}
