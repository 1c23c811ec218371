// Package follow computes the progress of services towards their SLA from watched services and
// instances.
//
//	p := follow.New(services)
//	p.SetInstance(instance)
//	if p.Done() { … }
package follow

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/ref"
)

// Progress compares services with their instances.
type Progress struct {
	services  map[api.ServiceID]api.Service
	instances map[api.InstanceID]api.Instance
	only      api.InstanceID // empty: all instances are followed
	begun     bool           // at least one service is known
}

// New returns the Progress of all instances of services.
func New(services []api.Service) *Progress {
	p := &Progress{instances: map[api.InstanceID]api.Instance{}}
	p.SetServices(services)
	return p
}

// NewInstance returns the Progress of a single instance.
func NewInstance(id api.InstanceID) *Progress {
	p := New(nil)
	p.only = id
	return p
}

// SetServices replaces the followed services.
func (p *Progress) SetServices(services []api.Service) {
	p.services = map[api.ServiceID]api.Service{}
	for _, s := range services {
		p.services[s.ID], p.begun = s, true
	}
}

// SetService adds or updates a service.
func (p *Progress) SetService(s api.Service) { p.services[s.ID] = s }

// DeleteService removes a service.
func (p *Progress) DeleteService(id api.ServiceID) { delete(p.services, id) }

// SetInstances replaces the known instances.
func (p *Progress) SetInstances(instances []api.Instance) {
	clear(p.instances)
	for _, i := range instances {
		p.SetInstance(i)
	}
}

// SetInstance adds or updates an instance.
func (p *Progress) SetInstance(i api.Instance) {
	if p.only == "" || i.ID == p.only {
		p.instances[i.ID] = i
	}
}

// DeleteInstance removes an instance.
func (p *Progress) DeleteInstance(id api.InstanceID) { delete(p.instances, id) }

// settled reports whether the instance is current and running, completed or dormant. An instance that
// runs must have passed its health checks.
func settled(i api.Instance, s api.Service) bool {
	return current(i, s) && (i.State == api.Running && !unready(i) || i.State == api.Dormant || s.Spec.OneShot && i.State == api.Completed)
}

// current reports whether the instance has the newest SLA, is not being stopped, and is not stale.
func current(i api.Instance, s api.Service) bool {
	return !i.Leaving && i.Spec >= s.SpecRev && !i.Stale
}

// unready reports whether the health checks of an instance that runs have not passed. Roots of earlier
// releases report the reason, but not Ready.
func unready(i api.Instance) bool {
	return i.State == api.Running && (i.Reason == api.ReasonNotReady || i.Reason == api.ReasonUnhealthy)
}

// Counts returns the number of settled instances and of wanted ones.
func (p *Progress) Counts() (settledNow, wanted int) { return p.count(settled) }

// count returns how many wanted instances meet a condition, and how many are wanted.
func (p *Progress) count(is func(api.Instance, api.Service) bool) (n, wanted int) {
	byService := map[api.ServiceID]int{}
	for _, i := range p.instances {
		if s, ok := p.services[i.Service]; ok && is(i, s) {
			byService[i.Service]++
		}
	}
	for id, s := range p.services {
		most := s.Replicas
		if p.only != "" {
			most = 1
		}
		wanted += most
		n += min(byService[id], most)
	}
	return n, wanted
}

// Done reports whether all wanted instances are settled and no roll-out is under way.
func (p *Progress) Done() bool {
	n, wanted := p.Counts()
	return n == wanted && !p.Deleted() && !p.rollingOut()
}

// rollingOut reports whether a roll-out continues by itself. One that waits for a person does not.
func (p *Progress) rollingOut() bool {
	for _, s := range p.services {
		if p.only == "" && (s.RollOut == api.RollOutProgressing || s.RollOut == api.RollOutRollingBack) {
			return true
		}
	}
	return false
}

// RollOutFailed reports whether the roll-out of a service has failed and nothing more happens by
// itself.
func (p *Progress) RollOutFailed() bool {
	for _, s := range p.services {
		if p.only == "" && s.RollOut == api.RollOutFailed {
			return true
		}
	}
	return false
}

// Services returns the followed services, sorted.
func (p *Progress) Services() []api.ServiceID { return slices.Sorted(maps.Keys(p.services)) }

// Deleted reports whether the followed services or instance were deleted.
func (p *Progress) Deleted() bool {
	return p.begun && (len(p.services) == 0 || p.only != "" && len(p.instances) == 0)
}

// Completed reports whether all wanted instances have completed.
func (p *Progress) Completed() bool {
	n, wanted := p.count(func(i api.Instance, s api.Service) bool { return current(i, s) && i.State == api.Completed })
	return wanted > 0 && n == wanted
}

// Failed returns the instances that have failed for good, in order.
func (p *Progress) Failed() []api.Instance {
	return p.pick(func(i api.Instance) bool {
		s, ok := p.services[i.Service]
		return ok && current(i, s) && i.State == api.Failed && api.Ended(i.State, i.Reason)
	})
}

// NeverComplete returns the services whose instances never complete, sorted by id.
func (p *Progress) NeverComplete() (ids []api.ServiceID) {
	for id, s := range p.services {
		if !s.Spec.OneShot && s.Replicas > 0 {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// Unsettled returns the instances that are not settled, in order.
func (p *Progress) Unsettled() []api.Instance {
	return p.pick(func(i api.Instance) bool { return !i.Leaving && !settled(i, p.services[i.Service]) })
}

// Unready returns the instances that run and whose health checks have not passed, in order.
func (p *Progress) Unready() []api.Instance {
	return p.pick(func(i api.Instance) bool { return !i.Leaving && unready(i) })
}

// Unplaced returns the instances that could not be placed, in order.
func (p *Progress) Unplaced() []api.Instance {
	return p.pick(func(i api.Instance) bool {
		return !i.Leaving && (i.State == api.Requested || i.State == api.ClusterScheduled) &&
			(i.Reason == api.ReasonNoCluster || i.Reason == api.ReasonNoCapacity)
	})
}

func (p *Progress) pick(keep func(api.Instance) bool) (out []api.Instance) {
	for _, id := range slices.SortedFunc(maps.Keys(p.instances), ref.Compare) {
		if i := p.instances[id]; keep(i) {
			out = append(out, i)
		}
	}
	return out
}
