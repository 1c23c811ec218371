package sim

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// scheduled is one run of the instances that share the times of a schedule, of one SLA.
type scheduled struct {
	id  api.InstanceID // the first of them
	rev api.Revision
	at  time.Time
}

// checkRun checks that no scheduled time runs again after its run has ended, or on two instances that
// share it, and that not more instances run than parallelism allows. A run may begin several times: it
// has several attempts, and is placed again if its node is lost.
func (w *World) checkRun(m *NodeMachine, v *workload) {
	if v.spec.Schedule == nil || !m.cluster.proc.alive {
		return
	}
	in, ok := m.cluster.core.Instance(v.Instance)
	if !ok {
		return
	}
	if w.runs == nil {
		w.runs, w.takers = map[scheduled]bool{}, map[scheduled]api.InstanceID{}
	}
	w.checkTurns(m, v, in.Spec)
	lane := v.spec.Schedule.Lane()
	first := v.Instance.Service().Instance(v.Instance.Number() / lane * lane)
	for _, r := range in.Runs {
		key := scheduled{first, in.Spec, r.At}
		if other := w.takers[key]; !r.Started.IsZero() && other != "" && other != v.Instance {
			w.violate("run once", string(v.Instance), "runs for %s, which %s has run", r.At.Sub(dawn), other)
		}
		if !r.Started.IsZero() {
			w.takers[key] = v.Instance
		}
		switch {
		case !r.Ended.IsZero() && !r.Started.IsZero():
			w.runs[key] = true
		case r.Result == api.RunRunning && w.runs[key] && in.Epoch == v.Epoch:
			w.violate("run once", string(v.Instance), "runs again for %s", r.At.Sub(dawn))
		}
	}
}

// checkTurns checks that not more instances of a service run in a cluster than parallelism allows. It
// does not count those of another SLA, which may have allowed more.
func (w *World) checkTurns(m *NodeMachine, v *workload, rev api.Revision) {
	n := v.spec.Parallelism
	if n == 0 {
		return
	}
	for id, all := range w.running {
		for _, o := range all {
			if id.Service() == v.Instance.Service() && o.workload != v && o.machine.cluster == m.cluster && w.revOf(m, id) == rev {
				n--
				break
			}
		}
	}
	if n <= 0 {
		w.violate("turns", string(v.Instance), "starts on %s, but %d others run, parallelism is %d", m.name, v.spec.Parallelism-n, v.spec.Parallelism)
	}
}

// revOf returns the SLA revision of an instance in a cluster; 0: the cluster does not have it.
func (w *World) revOf(m *NodeMachine, id api.InstanceID) api.Revision {
	in, _ := m.cluster.core.Instance(id)
	return in.Spec
}
