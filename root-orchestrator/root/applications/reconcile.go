package applications

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// ReconcileSoon queues a service for TakeReconcile, because one report may affect thousands of its
// instances.
func (m *Machine) ReconcileSoon(id api.ServiceID) { m.toReconcile.Add(id) }

// TakeReconcile returns and clears the queue of services to reconcile.
func (m *Machine) TakeReconcile() []api.ServiceID { return m.toReconcile.Take() }

func (s *service) wanted() int {
	if s.app == nil || s.app.Leaving {
		return 0
	}
	return s.app.Replicas[s.id]
}

func (s *service) live() (out []*Instance) {
	for _, id := range step.Keys(s.instances) {
		if in := s.instances[id]; !in.Leaving {
			out = append(out, in)
		}
	}
	return out
}

// Surplus returns the instances above the service's number of replicas, and the reason to withdraw
// them. Instances that neither run nor have completed come first, then completed ones, then running
// ones; among equals, the highest number comes first.
func (m *Machine) Surplus(id api.ServiceID) ([]api.InstanceID, api.Reason) {
	s := m.services[id]
	live := s.live()
	slices.SortFunc(live, func(a, b *Instance) int {
		return cmp.Or(cmp.Compare(a.keepRank(), b.keepRank()), b.ID.Number()-a.ID.Number())
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

func (in *Instance) keepRank() int {
	switch in.State {
	case api.Running:
		return 2
	case api.Completed:
		return 1
	}
	return 0
}

// Missing returns the ids of the instances that a service lacks: the lowest free numbers. It
// accepts unknown services.
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

// Outdated returns the instances that do not run and do not have the newest SLA. They are updated
// at once. It accepts unknown services.
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

// RollOut returns the running instances that do not have the newest SLA, or none while the result
// of an earlier update is open. Instances are updated one at a time, so that an SLA that does not
// work stops at one instance. It accepts unknown services.
func (m *Machine) RollOut(id api.ServiceID) (out []api.InstanceID) {
	s := m.services[id]
	if s == nil || s.app == nil {
		return nil
	}
	for _, in := range s.live() {
		switch newest := in.SpecRev == s.app.SpecRevs[id]; {
		case newest && in.undecided():
			return nil
		case !newest && in.State == api.Running:
			out = append(out, in.ID)
		}
	}
	return out
}

// undecided reports whether it is still open if the instance's SLA works. An instance that no cluster
// can host does not count: it must not block the others.
func (in *Instance) undecided() bool {
	switch in.State {
	case api.Running, api.Completed, api.Dormant:
		return false
	case api.Requested:
		return in.Fails > 0
	}
	return true
}

// Collect removes a service without application and instances. It reports whether the service does
// not exist any more, and accepts unknown services.
func (m *Machine) Collect(id api.ServiceID) bool {
	s := m.services[id]
	if s != nil && (s.app != nil || len(s.instances) > 0) {
		return false
	}
	delete(m.services, id)
	return true
}
