package sim

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// plan requests plans and explanations from both tiers. They must not change the course of
// the world.
func (w *World) plan() {
	if !w.root.proc.running() {
		return
	}
	now := w.root.proc.clock.at(w.now)
	for _, p := range w.chaos.people {
		spec := api.Application{Name: p.name, Namespace: "prod"}
		for i, name := range []string{firstService, "s1"} {
			n := 2 + i
			m := api.Microservice{
				Name: name, Namespace: "v1", Virtualization: "container", Code: image(p.tenant, name, "ok"),
				VCPUs: 0.5, Memory: 100, VGPUs: i, Priority: p.priority(name), Replicas: &n,
			}
			if i > 0 {
				m.Constraints = []api.Constraint{
					{Type: api.ConstrainLatency, Target: users[0], Threshold: 50},
					{Type: api.ConstrainSpread},
					{Type: api.ConstrainAntiAffinity, Services: []string{firstService + ".v1"}},
				}
			}
			spec.Services = append(spec.Services, m)
		}
		planned, err := w.root.core.Plan(now, p.tenant, []api.Application{spec}, nil)
		if err != nil {
			continue // it is being deleted
		}
		for _, id := range step.Keys(planned.Asks) {
			if c := w.cluster(id); c != nil && c.proc.alive {
				c.core.Plan(api.ClusterPlanRequest{Instances: planned.Asks[id]})
				for _, r := range planned.Asks[id] {
					c.core.WhyOf(r)
				}
			}
		}
	}
	for _, in := range w.root.core.Instances("") {
		w.root.core.Why(in.ID, now)
	}
}
