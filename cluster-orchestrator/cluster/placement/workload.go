package placement

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// Workload is the operator's policy on the memory and processor of one instance. A value of 0
// is not set.
type Workload struct {
	Reserve api.Resources // reserved if the SLA names none
	Limit   api.Resources // limit on the node if the SLA names none
	Max     api.Resources // maximum that an SLA may name
}

// ConstraintWorkload rejects an instance whose SLA exceeds Workload.Max.
const ConstraintWorkload = "workload"

// filled returns the SLA with the memory and processor of r where the SLA names none.
func filled(m api.Microservice, r api.Resources) api.Microservice {
	if m.Memory == 0 {
		m.Memory = r.MemoryMB
	}
	if m.VCPUs == 0 {
		m.VCPUs = float64(r.MilliCPU) / 1000
	}
	return m
}

func (m *Machine) demandOf(id api.InstanceID, sla *api.Microservice) demand {
	spec := filled(*sla, m.cfg.Workload.Reserve)
	return demandOf(id, &spec)
}

// tooLarge returns the rejection of an instance whose SLA exceeds Workload.Max, or nil.
// Callers do not apply it to placed instances.
func (m *Machine) tooLarge(in *instance) *api.Rejection {
	most := m.cfg.Workload.Max
	if m := in.Desired.Spec.Memory + in.Desired.Spec.TmpfsMB(); most.MemoryMB > 0 && m > most.MemoryMB {
		return tooMuch("memory of "+api.MiB(m), "at most "+api.MiB(most.MemoryMB)+" for one workload (workload.max_memory of the cluster)")
	}
	if m := in.Desired.Spec.VCPUs; most.MilliCPU > 0 && m*1000 > float64(most.MilliCPU) {
		return tooMuch(fmt.Sprintf("vcpus of %g", m), fmt.Sprintf("at most %g for one workload (workload.max_vcpus of the cluster)", float64(most.MilliCPU)/1000))
	}
	return nil
}

func tooMuch(need, have string) *api.Rejection {
	return &api.Rejection{Constraint: ConstraintWorkload, Need: need, Have: have, Shortfall: 1}
}

// explainRejection returns the explanation of a rejection that does not depend on the nodes.
func (m *Machine) explainRejection(r *api.Rejection, have string) *api.Explanation {
	return &api.Explanation{
		Considered: len(m.nodes), Nearest: r,
		Causes: []api.Cause{{Constraint: r.Constraint, Count: len(m.nodes), Detail: "need " + r.Need + ", " + have}},
	}
}
