package placement

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// links has what relates a service's places to those of other services of its application,
// according to the newest SLA.
type links struct {
	relations      []relation // in the order of the services' ids
	watched        bool       // it has links to or from another service
	areas          []string
	limitsClusters bool // a spread or anti-affinity by cluster applies

	sent   map[api.ClusterID][]api.Target // the targets sent last to each cluster
	sentAt time.Time
}

type relation struct {
	id           api.ServiceID
	in           []*reach // links of the other service to this one
	out          bool     // this service has links to the other one
	affinity     float64  // added to the score of clusters with instances of the other service; 0: none
	antiAffinity bool     // one of the two SLAs has an anti-affinity by cluster
}

// sendEvery is the least time between two messages with the targets of a service's links,
// compareEvery the least time between two comparisons with the targets sent last.
const (
	sendEvery    = 10 * time.Second
	compareEvery = time.Second
)

// maxPositions limits the positions that are sent for one end of a link. maxPoints limits the
// positions to which the root measures; with more, it assumes that any cluster may be near one.
// maxCentres limits the clusters that stand for an area or for instances without a position.
const (
	maxPositions = 16
	maxPoints    = 64
	maxCentres   = 32
)

// relate computes the relations between the services of an application.
func (m *Machine) relate(all []*service) {
	for _, s := range all {
		s.links, s.places.reaches = links{sent: s.links.sent, sentAt: s.links.sentAt}, nil
		delete(m.inAreas, s.id)
		s.links.limitsClusters = slices.ContainsFunc(sched.SpreadsOf(s.spec), func(d sched.Spread) bool { return d.By == "cluster" })
		for _, l := range sched.LinksOf(s.spec) {
			if l.Area != "" && !slices.Contains(s.links.areas, l.Area) {
				s.links.areas = append(s.links.areas, l.Area)
				m.inAreas[s.id] = true
			}
		}
	}
	for _, s := range all {
		for _, t := range all {
			if s == t || !namesOthers(s.spec) && !namesOthers(t.spec) {
				continue
			}
			out, in := linksTo(s, t.id), linksTo(t, s.id)
			k := relation{
				id: t.id, out: len(out) > 0, affinity: max(affinity(out, s, t.id), affinity(in, t, s.id)),
				antiAffinity: antiAffinity(s, t.id) || antiAffinity(t, s.id),
			}
			for _, l := range in {
				k.in = append(k.in, newReach(l, &t.places, &s.places))
			}
			s.links.limitsClusters = s.links.limitsClusters || k.antiAffinity
			if k.out || len(in) > 0 || k.affinity > 0 || k.antiAffinity {
				s.links.relations = append(s.links.relations, k)
				s.links.watched = s.links.watched || k.out || len(in) > 0
			}
		}
	}
	for _, s := range all {
		if s.links.watched || len(s.links.areas) > 0 {
			m.outdated[s.id] = true
		}
	}
}

func namesOthers(v *api.Microservice) bool {
	return len(v.Connectivity) > 0 || slices.ContainsFunc(v.Constraints, func(k api.Constraint) bool {
		return k.Type == api.ConstrainLatency && k.Service != "" || k.Type == api.ConstrainAntiAffinity
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

func antiAffinity(s *service, id api.ServiceID) bool {
	return slices.ContainsFunc(sched.AntiAffinitiesOf(s.spec), func(a sched.AntiAffinity) bool { return a.By == "cluster" && a.Names(s.id, id) })
}

// affinity returns a bonus that grows as the bounds of links shrink. For comparison, the scores of
// plugins differ by about 1.
func affinity(links []sched.Link, s *service, id api.ServiceID) float64 {
	score := 0.0
	for _, l := range links {
		switch {
		case l.RTT > 0:
			score = max(score, 0.25+4*20/(20+float64(l.RTT)/float64(time.Millisecond)))
		case l.Km > 0:
			score = max(score, 0.25+4*100/(100+l.Km))
		}
	}
	for _, to := range s.spec.Connectivity {
		if (sched.Link{Service: to.Target}).Names(s.id, id) {
			score = max(score, 0.5)
		}
	}
	return score
}

// withAffinity is a plugin that prefers clusters with instances of related services.
type withAffinity struct {
	sched.Plugin
	to map[api.ClusterID]float64
}

func (p withAffinity) Score(f sched.Facts) float64 { return p.Plugin.Score(f) + p.to[f.Cluster] }

func (m *Machine) plugin(in Instance) sched.Plugin {
	to := map[api.ClusterID]float64{}
	for _, k := range m.of(in.ID).links.relations {
		if t := m.services[k.id]; t != nil && k.affinity > 0 {
			for id := range t.peers {
				to[api.ClusterID(id)] = max(to[api.ClusterID(id)], k.affinity)
			}
		}
	}
	if len(to) == 0 {
		return m.cfg.Plugin
	}
	return withAffinity{m.cfg.Plugin, to}
}

// bind adds to the request the bounds from links and the clusters that have reached a spread limit
// or have an anti-affinity.
func (m *Machine) bind(req *sched.Request, in Instance, s *service) {
	for _, l := range sched.LinksOf(in.Spec) {
		switch {
		case l.Service != "":
			// If the service has no instances yet, the link is checked when that service is placed.
			to := m.named(s, l)
			if l.Relaxable && slices.ContainsFunc(to, func(t *service) bool { return len(t.peers) > 0 }) {
				req.SearchFor(l.Convergence)
			}
			if at, all := positions(l, to); all {
				if b, ok := m.boundAt(l, at, to); ok {
					req.Bounds = append(req.Bounds, b)
				}
			}
		case l.Area != "":
			if b, ok := m.areaBound(l); ok {
				req.Bounds = append(req.Bounds, b)
			}
		}
		// Links to users are measured by the clusters.
	}
	for _, k := range s.links.relations {
		t := m.services[k.id]
		if t == nil || t.spec == nil {
			continue
		}
		for _, r := range k.in {
			// The instance should be near the positions that have no other instance near them.
			at, all := r.unserved(m.instances[in.ID], maxPoints)
			if !all || len(at) == 0 && (s.instances > 1 || len(t.places.spots) > 0) {
				continue
			}
			if b, ok := m.boundAt(r.link, at, []*service{t}); ok {
				req.Bounds = append(req.Bounds, r.link.Inbound(t.id, b))
			}
		}
		if !k.antiAffinity {
			continue
		}
		for _, id := range step.Keys(t.peers) {
			req.Domains = append(req.Domains, sched.Domain{By: "cluster", Name: id, AntiAffinity: t.id.NameInApp(), Have: t.peers[id]})
		}
	}
	for _, spread := range sched.SpreadsOf(in.Spec) {
		if spread.By != "cluster" {
			continue // the clusters enforce it
		}
		for _, id := range step.Keys(s.peers) {
			if n := s.peers[id]; n >= spread.Limit {
				req.Domains = append(req.Domains, sched.Domain{By: "cluster", Name: id, Have: n, Limit: spread.Limit})
			}
		}
	}
}

// positions returns the known positions of services to which a link can be measured. If there are
// more than maxPoints, all is false.
func positions(l sched.Link, to []*service) (at []api.Position, all bool) {
	for _, t := range to {
		more, all := t.places.measurable(l, maxPoints)
		if !all {
			return nil, false
		}
		at = append(at, more...)
	}
	return at, len(at) <= maxPoints
}

// areaBound returns the bound of a link to an area: near enough to a cluster that may have nodes in
// it. It returns false if the clusters' aggregates do not determine that.
func (m *Machine) areaBound(l sched.Link) (sched.Bound, bool) {
	var there []*sched.Candidate
	for i, all := 0, m.table.All(); i < len(all); i++ {
		cand := &all[i]
		if slices.ContainsFunc(cand.Slots, func(r sched.Slot) bool { return slices.Contains(r.Areas, sched.Unreported) }) {
			return sched.Bound{}, false // it may have nodes there
		}
		if !hasArea(cand, l.Area) {
			continue
		}
		if cand.Coord == nil || len(there) == maxCentres {
			return sched.Bound{}, false // any cluster may be near it
		}
		there = append(there, cand)
	}
	if len(there) == 0 {
		return sched.Bound{}, false // no cluster reports the area: the clusters enforce the link
	}
	return m.boundTo(l, there, nil), true
}

func hasArea(c *sched.Candidate, area string) bool {
	return slices.ContainsFunc(c.Slots, func(r sched.Slot) bool { return slices.Contains(r.Areas, area) })
}

// named returns the services that a link of s names.
func (m *Machine) named(s *service, l sched.Link) (out []*service) {
	for _, k := range s.links.relations {
		if t := m.services[k.id]; t != nil && l.Names(s.id, k.id) {
			out = append(out, t)
		}
	}
	return out
}

// boundAt returns the bound of a link to positions and to instances of services without a reported
// position, which may be anywhere in their cluster. It returns false if any cluster may be near
// enough.
func (m *Machine) boundAt(l sched.Link, at []api.Position, to []*service) (sched.Bound, bool) {
	var there []*sched.Candidate
	for _, t := range to {
		for _, id := range t.places.unmeasurable(l) {
			cand := m.Candidate(id)
			if slices.Contains(there, cand) {
				continue
			}
			if l.RTT == 0 || cand == nil || cand.Coord == nil || len(there) == maxCentres {
				return sched.Bound{}, false
			}
			there = append(there, cand)
		}
	}
	if len(there) == 0 {
		return l.Bound(at...), len(at) > 0
	}
	return m.boundTo(l, there, at), true
}

// boundTo returns the bound of a link to clusters or positions. A candidate's distance is the least
// that it may have to the nearest of them.
func (m *Machine) boundTo(l sched.Link, there []*sched.Candidate, at []api.Position) sched.Bound {
	b := l.Bound()
	b.Measured = map[string]time.Duration{}
	for i, all := 0, m.table.All(); i < len(all); i++ {
		cand := &all[i]
		if cand.Coord == nil {
			b.Measured[cand.ID] = 0
			continue
		}
		nearest := time.Duration(1<<63 - 1)
		for _, a := range there {
			d := time.Duration(0)
			if a.ID != cand.ID {
				d = max(0, vivaldi.Distance(*a.Coord, *cand.Coord)-a.Radius-cand.Radius)
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
