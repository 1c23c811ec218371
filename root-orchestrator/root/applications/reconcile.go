package applications

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// ReconcileSoon has a service reconciled at the end of the step: a report may be about
// thousands of its instances.
func (m *Machine) ReconcileSoon(id api.ServiceID) { m.toReconcile.Add(id) }

// TakeReconcile returns the services to be reconciled.
func (m *Machine) TakeReconcile() []api.ServiceID { return m.toReconcile.Take() }

func (s *service) wanted() int {
	if s.app == nil || s.app.Leaving {
		return 0
	}
	return s.app.Replicas[s.id]
}

// live returns the instances that do not leave, in the order of their ids.
func (s *service) live() (out []*Instance) {
	for _, id := range step.Keys(s.instances) {
		if in := s.instances[id]; !in.Leaving {
			out = append(out, in)
		}
	}
	return out
}

// Surplus returns the instances that a service has beyond its number of replicas, and the
// reason for which they are to leave. Those that neither run nor have completed come
// first, then those that have completed; of several, the highest number comes first.
func (m *Machine) Surplus(id api.ServiceID) ([]api.InstanceID, api.Reason) {
	s := m.services[id]
	live := s.live()
	slices.SortFunc(live, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.worth(), b.worth()), b.ID.Number()-a.ID.Number())
	})
	reason := api.ReasonScaledDown
	if s.app == nil || s.app.Leaving {
		reason = api.ReasonDeleted
	}
	var out []api.InstanceID
	for _, in := range live[:max(0, len(live)-s.wanted())] {
		out = append(out, in.ID)
	}
	return out, reason
}

func (in *Instance) worth() int {
	switch in.State {
	case api.Running:
		return 2
	case api.Completed:
		return 1
	}
	return 0
}

// Missing returns the ids of the instances that a service needs to reach its number of
// replicas: the lowest numbers that are free. It accepts unknown services.
func (m *Machine) Missing(id api.ServiceID) (out []api.InstanceID) {
	s := m.services[id]
	if s == nil {
		return nil
	}
	missing := s.wanted() - len(s.live())
	for n := 0; len(out) < missing; n++ {
		if next := id.Instance(n); s.instances[next] == nil {
			out = append(out, next)
		}
	}
	return out
}

// Outdated returns the instances that do not run and do not have the newest SLA of their
// service: they are updated at once. It accepts unknown services.
func (m *Machine) Outdated(id api.ServiceID) (out []api.InstanceID) {
	s := m.services[id]
	if s == nil || s.app == nil {
		return nil
	}
	for _, in := range s.live() {
		if in.SpecRev != s.app.SpecRevs[id] && in.State != api.Running {
			out = append(out, in.ID)
		}
	}
	return out
}

// RollOut returns the running instances that do not have the newest SLA, if the next of
// them may be updated: one is updated after the other, each when the one before runs, so
// that an SLA that does not work stops at one instance. It accepts unknown services.
func (m *Machine) RollOut(id api.ServiceID) (out []api.InstanceID) {
	s := m.services[id]
	if s == nil || s.app == nil {
		return nil
	}
	for _, in := range s.live() {
		switch newest := in.SpecRev == s.app.SpecRevs[id]; {
		case newest && in.settles():
			return nil
		case !newest && in.State == api.Running:
			out = append(out, in.ID)
		}
	}
	return out
}

// settles reports whether it is still unknown if the instance's SLA works. An instance
// that no cluster can host does not count: it must not block the others.
func (in *Instance) settles() bool {
	switch in.State {
	case api.Running, api.Completed:
		return false
	case api.Requested:
		return in.Fails > 0
	}
	return true
}

// Collect removes a service that no application has and that has no instances. It
// reports whether the service is gone, and accepts unknown services.
func (m *Machine) Collect(id api.ServiceID) bool {
	s := m.services[id]
	if s != nil && (s.app != nil || len(s.instances) > 0) {
		return false
	}
	delete(m.services, id)
	return true
}
