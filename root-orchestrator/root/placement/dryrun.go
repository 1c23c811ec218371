package placement

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// DryRun returns an independent copy with all clusters, and the given services and instances; its
// cost grows with these. The copy does not ask the external scheduler. doubts has, by instance, the
// clusters that answered that they cannot take it.
func (m *Machine) DryRun(services []api.ServiceID, instances iter.Seq[Instance], doubts map[api.InstanceID][]Doubt) *Machine {
	d := New(m.cfg)
	d.cfg.Asks, d.dryRun, d.doubts = "", true, doubts
	d.Begin(m.clock, m.now, m.wall)
	d.facts = maps.Clone(m.facts)
	for _, cand := range m.table.All() {
		d.table.Put(cand)
	}
	for _, id := range services {
		if s := m.services[id]; s != nil {
			n := d.service(id)
			n.peers, n.refusals = maps.Clone(s.peers), s.refusals
			n.refusals.by = maps.Clone(s.refusals.by)
			n.refusals.accepted, n.refusals.probes = map[api.ClusterID]bool{}, map[api.ClusterID]api.InstanceID{}
		}
	}
	for in := range instances {
		it := m.instances[in.ID]
		d.Add(in.ID)
		n := d.instances[in.ID]
		n.refusals, n.refused, n.pausedUntil, n.until = maps.Clone(it.refusals), it.refused, it.pausedUntil, it.until
		d.Locate(in)
	}
	return d
}

// Doubted reports whether a cluster answered that it cannot take the instance.
func (m *Machine) Doubted(id api.InstanceID) bool { return len(m.doubts[id]) > 0 }

// SkipSearch ends the search for an instance's place as if its time were over, and reports whether
// there was a search.
func (m *Machine) SkipSearch(in Instance) bool {
	it := m.instances[in.ID]
	if in.Leaving || in.Cluster != "" || !m.searching(in) {
		return false
	}
	it.skipped, it.until = it.until.Sub(m.now), m.now
	return true
}

// Skipped returns the remaining search time that SkipSearch skipped.
func (m *Machine) Skipped(id api.InstanceID) time.Duration {
	if it := m.instances[id]; it != nil {
		return it.skipped
	}
	return 0
}

// WhyNowhere explains why no cluster fits the instance.
func (m *Machine) WhyNowhere(in Instance) api.Explanation {
	req := m.request(in)
	return sched.Explain(m.table.Place(&req, m.plugin(in), in.seed()))
}

// Headroom returns how much of each resource in the instance's request would be left for one more
// instance in its cluster.
func (m *Machine) Headroom(in Instance) []string {
	cand := m.Candidate(in.Cluster)
	runtime := sched.RuntimeName(in.Spec.Virtualization)
	var left api.Resources
	devices := map[string]int{}
	for _, r := range cand.Slots {
		if slices.Contains(r.Runtimes, runtime) || slices.Contains(r.Runtimes, sched.Unreported) {
			left = left.Max(r.Largest.Min(cand.Free))
			for kind, n := range r.Devices {
				devices[kind] = max(devices[kind], n)
			}
		}
	}
	return sched.Headroom(&sched.Request{Needs: in.Spec.Needs(), Devices: in.Spec.NeedsDevices()}, left, devices)
}
