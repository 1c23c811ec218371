package sim

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// scheduled is one run of one instance, of one SLA.
type scheduled struct {
	id  api.InstanceID
	rev api.Revision
	at  time.Time
}

// checkRun checks that no scheduled time runs again after its run has ended. A run may begin several
// times: it has several attempts, and is placed again if its node is lost.
func (w *World) checkRun(m *NodeMachine, v *workload) {
	if v.spec.Schedule == nil || !m.cluster.proc.alive {
		return
	}
	in, ok := m.cluster.core.Instance(v.Instance)
	if !ok {
		return
	}
	if w.runs == nil {
		w.runs = map[scheduled]bool{}
	}
	for _, r := range in.Runs {
		key := scheduled{v.Instance, in.Spec, r.At}
		switch {
		case !r.Ended.IsZero() && !r.Started.IsZero():
			w.runs[key] = true
		case r.Result == api.RunRunning && w.runs[key] && in.Epoch == v.Epoch:
			w.violate("run once", string(v.Instance), "runs again for %s", r.At.Sub(dawn))
		}
	}
}
