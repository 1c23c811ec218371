package applications

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// budgetDue queues a service with a disruption budget for TakeBudgets.
func (m *Machine) budgetDue(id api.ServiceID) {
	if s := m.services[id]; s != nil && s.spec != nil && s.spec.Disruption != nil {
		m.budgetsDue.Add(id)
	}
}

// TakeBudgets returns and clears the queue of the services with a disruption budget of which an instance has
// changed, and of those whose disruption budget has changed.
func (m *Machine) TakeBudgets() []api.ServiceID { return m.budgetsDue.Take() }

// TakeRebudgeted reports whether the disruption budget of a service has changed since the last call.
func (m *Machine) TakeRebudgeted(id api.ServiceID) bool {
	changed := m.rebudgeted[id]
	delete(m.rebudgeted, id)
	return changed
}

// MaxUnavailable returns the disruption budget of a service; nil: it has none.
func (m *Machine) MaxUnavailable(id api.ServiceID) *int {
	_, spec := m.Service(id)
	if spec == nil {
		return nil
	}
	if n, limited := spec.MaxUnavailable(); limited {
		return &n
	}
	return nil
}

// Disruptable returns the instances of a service whose voluntary disruption its budget permits now and did not
// before. live reports whether a cluster is connected. An instance counts against the budget from the permission
// until its cluster no longer reports the disruption, and while it does not run for any other reason. Instances
// that have ended, sleep or are leaving do not count.
func (m *Machine) Disruptable(id api.ServiceID, live func(api.ClusterID) bool) (out []api.InstanceID) {
	budget := m.MaxUnavailable(id)
	if budget == nil {
		return nil
	}
	used := 0
	var waiting []*Instance
	for _, in := range m.services[id].instances {
		switch {
		case in.Leaving, in.Ended(), in.State == api.Dormant:
		case in.Permitted != 0, !in.available() || !live(in.Cluster):
			used++
		case in.Disruption != 0:
			waiting = append(waiting, in)
		}
	}
	slices.SortFunc(waiting, func(a, b *Instance) int { return cmp.Compare(a.ID.Number(), b.ID.Number()) })
	for _, in := range waiting[:min(max(*budget-used, 0), len(waiting))] {
		out = append(out, in.ID)
	}
	return out
}

// available reports whether an instance is available as far as disruption budgets are concerned. One that
// runs and does not listen may be a worker, which never does.
func (in *Instance) available() bool {
	switch in.Reason {
	case api.ReasonClusterLost, api.ReasonRuntimeDown, api.ReasonNotReady, api.ReasonUnhealthy:
		return false
	}
	return in.State == api.Running
}

// Permit records that the disruption budget permits the disruption of an instance that its cluster requests.
func (m *Machine) Permit(id api.InstanceID) {
	in := m.instances[id]
	in.Permitted = in.Disruption
	m.Change(id)
}
