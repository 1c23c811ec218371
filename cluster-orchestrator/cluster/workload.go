package cluster

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// Workload is what the operator says of the memory and the processor of one instance.
// Of each part zero says nothing.
type Workload struct {
	Reserve api.Resources // counts as taken where the SLA says nothing
	Limit   api.Resources // bounds it on its node where the SLA says nothing
	Most    api.Resources // an SLA that asks for more is refused
}

// ConstraintWorkload rules out an instance that asks for more than Workload.Most.
const ConstraintWorkload = "workload"

// filled returns the SLA with what r says where it asks for no memory or no processor.
func filled(m api.Microservice, r api.Resources) api.Microservice {
	if m.Memory == 0 {
		m.Memory = r.MemoryMB
	}
	if m.VCPUs == 0 {
		m.VCPUs = float64(r.MilliCPU) / 1000
	}
	return m
}

// demandOf is what an SLA asks of a place in this cluster.
func (c *Core) demandOf(id api.InstanceID, m *api.Microservice) demand {
	spec := filled(*m, c.cfg.Workload.Reserve)
	return demandOf(id, &spec)
}

// tooLarge says by what the instance asks for more than the operator allows one
// workload, or nil. What has a node stays there: it was placed under another limit.
func (c *Core) tooLarge(in *instance) *api.Rejection {
	most := c.cfg.Workload.Most
	if m := in.Want.Spec.Memory; most.MemoryMB > 0 && m > most.MemoryMB {
		return &api.Rejection{
			Constraint: ConstraintWorkload, Need: fmt.Sprintf("memory of %d MiB", m),
			Have: fmt.Sprintf("at most %d MiB for one workload (workload.max_memory of the cluster)", most.MemoryMB), Shortfall: 1,
		}
	}
	if m := in.Want.Spec.VCPUs; most.MilliCPU > 0 && m*1000 > float64(most.MilliCPU) {
		return &api.Rejection{
			Constraint: ConstraintWorkload, Need: fmt.Sprintf("vcpus of %g", m),
			Have: fmt.Sprintf("at most %g for one workload (workload.max_vcpus of the cluster)", float64(most.MilliCPU)/1000), Shortfall: 1,
		}
	}
	return nil
}

// refusal explains that the operator refuses an instance, whatever its nodes have.
func (c *Core) refusal(r *api.Rejection) *api.Explanation {
	return &api.Explanation{
		Considered: len(c.nodes), Nearest: r,
		Causes: []api.Cause{{Constraint: r.Constraint, Count: len(c.nodes), Detail: "need " + r.Need + ", " + r.Have}},
	}
}
