// Package follow says how far services are on the way to what was asked of
// them. It is pure: what is seen comes in, lines and answers come out.
//
//	p := follow.New(services)
//	p.See(instance)
//	if p.Done() { … }
package follow

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cli/ref"
)

// Progress is what is known of the instances of some services.
type Progress struct {
	goals map[api.ServiceID]api.Service
	have  map[api.InstanceID]api.Instance
}

// New follows services to the number of instances and the spec that they have.
func New(services []api.Service) *Progress {
	p := &Progress{goals: map[api.ServiceID]api.Service{}, have: map[api.InstanceID]api.Instance{}}
	for _, s := range services {
		p.goals[s.ID] = s
	}
	return p
}

// See takes what is true of an instance now.
func (p *Progress) See(i api.Instance) { p.have[i.ID] = i }

// Gone takes that an instance is no more.
func (p *Progress) Gone(id api.InstanceID) { delete(p.have, id) }

// settled reports whether the instance is as its service wants it.
func settled(i api.Instance, s api.Service) bool {
	return !i.Leaving && i.Spec >= s.SpecRev && !i.Stale && (i.State == api.Running || s.Spec.OneShot && i.State == api.Completed)
}

// Counts are the instances that are as they should be, and those wanted.
func (p *Progress) Counts() (settledNow, wanted int) {
	byService := map[api.ServiceID]int{}
	for _, i := range p.have {
		if s, ok := p.goals[i.Service]; ok && settled(i, s) {
			byService[i.Service]++
		}
	}
	for id, s := range p.goals {
		wanted += s.Replicas
		settledNow += min(byService[id], s.Replicas)
	}
	return settledNow, wanted
}

// Done reports whether all is as it was asked for.
func (p *Progress) Done() bool {
	n, wanted := p.Counts()
	return n == wanted
}

// Behind are the instances that are not as they should be, in order.
func (p *Progress) Behind() []api.Instance {
	return p.pick(func(i api.Instance) bool { return !i.Leaving && !settled(i, p.goals[i.Service]) })
}

// Unplaced are the instances that no cluster could take.
func (p *Progress) Unplaced() []api.Instance {
	return p.pick(func(i api.Instance) bool {
		return !i.Leaving && (i.State == api.Requested || i.State == api.ClusterScheduled) &&
			(i.Reason == api.ReasonNoCluster || i.Reason == api.ReasonNoCapacity)
	})
}

func (p *Progress) pick(keep func(api.Instance) bool) (out []api.Instance) {
	ids := make([]string, 0, len(p.have))
	for id := range maps.Keys(p.have) {
		ids = append(ids, string(id))
	}
	ref.Sort(ids)
	for _, id := range ids {
		if i := p.have[api.InstanceID(id)]; keep(i) {
			out = append(out, i)
		}
	}
	return slices.Clip(out)
}
