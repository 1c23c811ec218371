package cluster

import (
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
)

// TestAnSLAThatNamesNoLimitGetsTheOperators: an SLA that names neither memory nor vcpus gets the
// operator's reservation and limit.
func TestAnSLAThatNamesNoLimitGetsTheOperators(t *testing.T) {
	w := newWorld(t, 1)
	w.cfg.Workload = placement.Workload{Reserve: api.Resources{MilliCPU: 500, MemoryMB: 1000}, Limit: api.Resources{MilliCPU: 2000, MemoryMB: 3000}}
	w.restart()
	w.pass(defaultDead)
	w.beat()
	silent, names := assignment(0, 1, spec(0.5, 64)), assignment(1, 1, spec(0.5, 64))
	silent.Spec.Memory, silent.Spec.VCPUs = 0, 0
	names.Spec.Memory, names.Spec.VCPUs = 64, 0.25
	w.wants(silent, names)
	w.pass(2e9)
	if used, want := w.c.place.Sums().Used, (api.Resources{MilliCPU: 750, MemoryMB: 1064}); used.MilliCPU != want.MilliCPU || used.MemoryMB != want.MemoryMB {
		t.Errorf("the node has %s taken, want %s", used, want)
	}
	told := w.nodes["n0"].want
	if m := told[silent.Instance].Spec; m.Memory != 3000 || m.VCPUs != 2 {
		t.Errorf("the node is told %d MiB and %g vCPUs of an SLA that names none", m.Memory, m.VCPUs)
	}
	if m := told[names.Instance].Spec; m.Memory != 64 || m.VCPUs != 0.25 {
		t.Errorf("the node is told %d MiB and %g vCPUs of an SLA that names 64 and 0.25", m.Memory, m.VCPUs)
	}
}

// TestAnSLAThatAsksForTooMuchIsRefusedByName: plan, why and the hand-back name the field and the
// setting.
func TestAnSLAThatAsksForTooMuchIsRefusedByName(t *testing.T) {
	for name, large := range map[string]func(*api.Microservice){
		"memory": func(m *api.Microservice) { m.Memory = 513 },
		"vcpus":  func(m *api.Microservice) { m.VCPUs = 1.5 },
	} {
		w := newWorld(t, 1)
		w.cfg.Workload.Max = api.Resources{MilliCPU: 1000, MemoryMB: 512}
		w.restart()
		w.pass(defaultDead)
		w.beat()
		a := assignment(0, 1, spec(0.5, 64))
		large(&a.Spec)
		ask := api.WhyRequest{Instance: a.Instance, Spec: a.Spec}
		planned := w.c.Plan(api.ClusterPlanRequest{Instances: []api.WhyRequest{ask}}).Instances[0]
		if planned.Action != "wait" || planned.Why == nil || planned.Why.Nearest == nil || planned.Why.Nearest.Constraint != placement.ConstraintWorkload {
			t.Errorf("%s: planned %+v", name, planned)
		}
		if why := w.c.WhyOf(ask); why.Nearest == nil || !strings.Contains(why.Nearest.Have, "workload.max_"+name) {
			t.Errorf("%s: why %+v", name, why.Nearest)
		}
		w.wants(a)
		in := w.record(a.Instance)
		if in.Node != "" || !in.HandedBack || w.observed(a.Instance).Why == nil || !strings.Contains(in.Detail, name) {
			t.Errorf("%s: it is on %q, handed back: %v, %q", name, in.Node, in.HandedBack, in.Detail)
		}
	}
}
