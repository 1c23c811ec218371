package sim

import (
	"hash/fnv"

	"github.com/treeline-edge/treeline/api"
)

// budgeted gives some services that moves interrupt a disruption budget, which depends on the name of the service
// only, without changing the run otherwise.
func budgeted(m api.Microservice) api.Microservice {
	m.Disruption = nil
	h := fnv.New32a()
	_, _ = h.Write([]byte(m.Name))
	if n := int(h.Sum32() % 4); n < 3 && !m.OneShot && (m.Exclusive || m.MovesVolumes()) {
		m.Disruption = &api.Disruption{MaxUnavailable: &n}
	}
	return m
}

// checkBudgets checks that clusters interrupt no more instances of a service than its disruption budget permits.
// Clusters may still have placements that the root has ended since.
func (w *World) checkBudgets() {
	if w.root == nil || !w.root.proc.alive {
		return
	}
	count := map[api.ServiceID]int{}
	for _, m := range w.clusters {
		if m.gone || !m.proc.alive {
			continue
		}
		for _, id := range m.core.Disrupting() {
			if in, ok := w.root.core.Instance(id); ok && in.Cluster == api.ClusterID(m.name) && !in.Leaving {
				count[id.Service()]++
			}
		}
	}
	for id, n := range count {
		if most, limited := w.root.core.MaxUnavailable(id); limited && n > most {
			w.violate("disruption", string(id), "%d instances are interrupted at once, its disruption budget is %d", n, most)
		}
	}
}
