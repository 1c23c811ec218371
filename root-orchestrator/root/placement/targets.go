package placement

import (
	"cmp"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// Targets returns the part of a service's assignments in a cluster that is about links: whether the
// positions of its instances are requested, and the targets of its links.
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

// targets returns the positions, outside this cluster, of instances that are linked with the
// service's instances, and for links to an area the centres of the clusters that are entirely in
// the area. A cluster that is partly in the area does not report which part.
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

// centresIn returns the centres of the other clusters that are entirely in the area.
func (m *Machine) centresIn(area string, but api.ClusterID) (at []api.Position) {
	for _, id := range step.Keys(m.facts) {
		c := m.Candidate(id)
		if id == but || c.Coord == nil || c.Out != "" || len(c.Slots) == 0 {
			continue
		}
		whole := true
		for i := range c.Slots {
			whole = whole && slices.Contains(c.Slots[i].Areas, area)
		}
		if whole {
			at = append(at, api.Position{Coord: c.Coord})
		}
	}
	return at
}

// nearest returns at most limit positions, those nearest to the coordinate. It keeps their order,
// because another order would count as a change.
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

// PlacesChanged marks the targets of the services linked with this one as outdated, because its
// instances changed place.
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

// Outdated returns the services with outdated targets. Resend has to be called for each at the end
// of the step.
func (m *Machine) Outdated() []api.ServiceID { return step.Keys(m.outdated) }

// Resend returns the clusters whose targets for the service differ much from those sent last. The
// service's instances there have to be assigned again, and its waiting instances retried. If
// targets were sent too recently, it sets a timer and returns false.
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
	m.noFit = noFit{}
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

// StillWaits reports whether the instance waits for a reason that applies to all instances with its
// SLA, so that the others need not be tried.
func (m *Machine) StillWaits(id api.InstanceID) bool {
	it := m.instances[id]
	return m.Waits(id) && len(it.refusals) == 0 && !it.pausedUntil.After(m.now)
}

func targetsDiffer(a, b []api.Target) bool {
	return !slices.EqualFunc(a, b, func(x, y api.Target) bool {
		return x.Service == y.Service && x.Area == y.Area &&
			slices.EqualFunc(x.Positions, y.Positions, func(p, q api.Position) bool { return near(&p, &q) })
	})
}
