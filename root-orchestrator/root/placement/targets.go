package placement

import (
	"cmp"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// Targets returns what the assignment of a service's instances in a cluster says about
// links: whether another service is measured against them, and where their links lead.
func (m *Machine) Targets(id api.ServiceID, cl api.ClusterID) (watched bool, to []api.Target) {
	s := m.service(id)
	if !s.links.watched && len(s.links.areas) == 0 {
		return false, nil
	}
	to, sent := s.links.sent[cl]
	if !sent {
		to = m.targets(s, cl)
		s.links.send(cl, to)
	}
	return s.links.watched, to
}

func (l *links) send(cl api.ClusterID, to []api.Target) {
	if l.sent == nil {
		l.sent = map[api.ClusterID][]api.Target{}
	}
	l.sent[cl] = to
}

// targets returns where, in other clusters, the instances are that are bound by a link to
// those of the service in this cluster, and the centres of clusters that are in an
// area as a whole, for links to the area. The aggregate of a cluster that is in an area
// in part does not say which part.
func (m *Machine) targets(s *service, cl api.ClusterID) (out []api.Target) {
	const many, few = 256, 4
	cand, limit := m.Candidate(cl), maxPositions
	if s.instances > many {
		limit = few // they are sent with every instance's assignment
	}
	for _, k := range s.links.relations {
		t := m.services[k.id]
		if t == nil || !k.out && len(k.in) == 0 {
			continue
		}
		if at := nearest(t.places.outside(cl), cand.Coord, limit); len(at) > 0 {
			out = append(out, api.Target{Service: t.id, Positions: at})
		}
	}
	for _, area := range s.links.areas {
		if at := nearest(m.centresIn(area, cl), cand.Coord, limit); len(at) > 0 {
			out = append(out, api.Target{Area: area, Positions: at})
		}
	}
	return out
}

// centresIn returns the centres of the clusters that are in the area as a whole.
func (m *Machine) centresIn(area string, but api.ClusterID) (at []api.Position) {
	for _, id := range step.Keys(m.facts) {
		c := m.Candidate(id)
		if id == but || c.Coord == nil || c.Out != "" || len(c.Rooms) == 0 {
			continue
		}
		whole := true
		for i := range c.Rooms {
			whole = whole && slices.Contains(c.Rooms[i].Areas, area)
		}
		if whole {
			at = append(at, api.Position{Coord: c.Coord})
		}
	}
	return at
}

// nearest returns at most limit of the positions, those nearest to the coordinate where
// they have one. It keeps their order, because a different order would count as a change.
func nearest(at []api.Position, to *api.Coordinate, limit int) []api.Position {
	if len(at) <= limit || to == nil {
		return at[:min(len(at), limit)]
	}
	type distant struct {
		i  int
		by time.Duration
	}
	all := make([]distant, len(at))
	for i, p := range at {
		all[i] = distant{i, 1<<63 - 1}
		if p.Coord != nil {
			all[i].by = vivaldi.Distance(*p.Coord, *to)
		}
	}
	slices.SortFunc(all, func(a, b distant) int { return cmp.Or(cmp.Compare(a.by, b.by), a.i-b.i) })
	all = all[:limit]
	slices.SortFunc(all, func(a, b distant) int { return a.i - b.i })
	out := make([]api.Position, limit)
	for i, d := range all {
		out[i] = at[d.i]
	}
	return out
}

// PlacesChanged has the targets compared of the services that are linked with this one,
// whose instances have come, moved or gone.
func (m *Machine) PlacesChanged(id api.ServiceID) {
	s := m.services[id]
	if s == nil {
		return
	}
	for _, k := range s.links.relations {
		if k.out || len(k.in) > 0 {
			m.outdated[k.id] = true
		}
	}
}

// Outdated returns the services for which Resend has to be called at the end of the step.
func (m *Machine) Outdated() []api.ServiceID { return step.Keys(m.outdated) }

// Resend returns the clusters whose targets for the service differ by much from what they
// were sent. The instances of the service there are to be assigned again, and those that
// wait are tried again. If the clusters were sent targets too recently, Resend sets a
// timer and returns false.
func (m *Machine) Resend(id api.ServiceID) (map[api.ClusterID]bool, bool) {
	delete(m.outdated, id)
	s := m.services[id]
	if s == nil || s.spec == nil {
		return nil, false
	}
	if at := s.links.sentAt.Add(sendEvery); !s.links.sentAt.IsZero() && at.After(m.now) {
		m.timers.SetEarlier(Due{Kind: dueTell, Service: id}, at)
		return nil, false
	}
	m.stuck = stuck{}
	changed := map[api.ClusterID]bool{}
	for _, host := range step.Keys(s.peers) {
		cl := api.ClusterID(host)
		if to := m.targets(s, cl); targetsDiffer(s.links.sent[cl], to) {
			s.links.send(cl, to)
			changed[cl] = true
		}
	}
	for cl := range s.links.sent {
		if s.peers[string(cl)] == 0 {
			delete(s.links.sent, cl)
		}
	}
	s.links.sentAt = m.now
	if len(changed) == 0 {
		s.links.sentAt = m.now.Add(compareEvery - sendEvery)
	}
	return changed, true
}

// StillWaits reports whether the other instances of the service with the same SLA need
// not be tried after this one was: it still waits, for a reason that applies to all.
func (m *Machine) StillWaits(id api.InstanceID) bool {
	it := m.instances[id]
	return m.Waits(id) && len(it.refusals) == 0 && !it.notUntil.After(m.now)
}

func targetsDiffer(a, b []api.Target) bool {
	return !slices.EqualFunc(a, b, func(x, y api.Target) bool {
		return x.Service == y.Service && x.Area == y.Area &&
			slices.EqualFunc(x.Positions, y.Positions, func(p, q api.Position) bool { return near(&p, &q) })
	})
}
