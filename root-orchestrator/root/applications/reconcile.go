package applications

import (
	"cmp"
	"slices"
	"time"

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
	return s.app.Replicas[s.id] + s.extra
}

// SetExtra sets how many instances a service should have in addition to its replicas, during a
// roll-out. It accepts unknown services.
func (m *Machine) SetExtra(id api.ServiceID, n int) {
	if s := m.services[id]; s != nil {
		s.extra = n
	}
}

// underWay counts the instances that have not ended, including leaving ones.
func (s *service) underWay() (n int) {
	for _, in := range s.instances {
		if !in.Ended() {
			n++
		}
	}
	return n
}

// Expires returns when the instances of a service are removed, because all have ended and their time
// to live is over then; zero: they are not all there, have not all ended, or are kept. It accepts
// unknown services.
func (m *Machine) Expires(id api.ServiceID) (at time.Time) {
	s := m.services[id]
	if s == nil || s.spec == nil || s.spec.TimeToLive == 0 || s.wanted() == 0 {
		return at
	}
	ended := 0
	for _, in := range s.instances {
		if in.Leaving {
			continue
		}
		if !in.Ended() || in.SpecRev != s.app.SpecRevs[id] {
			return time.Time{}
		}
		if ended++; in.Since.After(at) {
			at = in.Since
		}
	}
	if ended < s.wanted() {
		return time.Time{}
	}
	return at.Add(time.Duration(s.spec.TimeToLive) * time.Second)
}

// Expired reports whether all services of an application have a time to live and no wanted instance.
func (m *Machine) Expired(id api.AppID) bool {
	a := m.apps[id]
	for sid, v := range a.services() {
		if v.TimeToLive == 0 || a.Replicas[sid] > 0 {
			return false
		}
	}
	return true
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
// ones, then those that take requests; among equals, the highest number comes first.
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
	switch {
	case in.TakesRequests(), in.State == api.Dormant:
		return 3
	case in.State == api.Running:
		return 2
	case in.State == api.Completed:
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
	if s.spec != nil && s.spec.Parallelism > 0 && s.spec.Schedule == nil { // instances of a schedule take turns in their cluster
		missing = min(missing, s.spec.Parallelism-s.underWay())
	}
	for n := 0; len(out) < missing; n++ {
		if next := id.Instance(n); s.instances[next] == nil {
			out = append(out, next)
		}
	}
	return out
}

// TakesRequests reports whether the instance is observed to take requests.
func (in *Instance) TakesRequests() bool {
	return in.State == api.Running && in.Ready && in.Reason != api.ReasonClusterLost && in.Reason != api.ReasonRuntimeDown
}

// FitsInPlace reports whether an instance with the SLA is fits where the instance is: it needs no
// more resources, and nothing else of its place.
func (in *Instance) FitsInPlace(is *api.Microservice) bool {
	if !is.Needs().Fits(in.Spec.Needs()) {
		return false
	}
	was, now := *in.Spec, *is
	if len(was.Files) > 0 == (len(now.Files) > 0) {
		was.Files, now.Files = nil, nil // otherwise it needs a node that has files
	}
	if (was.Health == nil) == (now.Health == nil) {
		was.Health, now.Health = nil, nil // likewise
	}
	for _, v := range []*api.Microservice{&was, &now} {
		v.Code, v.Cmd, v.Environment, v.Callers, v.Calls = "", nil, nil, nil, nil
		v.Memory, v.VCPUs, v.Storage, v.BandwidthIn, v.BandwidthOut = 0, 0, 0, 0, 0
		v.StopGrace, v.OnDisconnect, v.MaxAttempts, v.Priority = 0, "", 0, ""
	}
	return same(&was, &now)
}

// Undecided reports whether it is still open if the instance's SLA works. An instance that no cluster
// can host does not count: it must not block the others.
func (in *Instance) Undecided() bool {
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
