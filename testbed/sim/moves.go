package sim

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	volumemoves "github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// data is what a machine has of a volume. Its content is the number of the last write to the volume on any machine:
// a machine with a lower one has lost writes.
type data struct {
	content uint64
	moved   api.Epoch // placements up to this one do not get it
}

// incoming is a copy that is not the volume yet.
type incoming struct {
	epoch   api.Epoch
	content uint64
}

// write lets a workload write to its volumes.
func (m *NodeMachine) write(v *workload) {
	for _, s := range v.spec.LocalVolumes() {
		id := v.Instance.Volume(s.Name)
		m.w.writes++
		d := m.data[id]
		d.content = m.w.writes
		m.data[id] = d
	}
}

// refuses reports whether a volume of the workload was sent to another node.
func (m *NodeMachine) refuses(id api.InstanceID, e api.Epoch, spec api.Microservice) bool {
	return slices.ContainsFunc(spec.LocalVolumes(), func(s api.Volume) bool {
		_, has := m.volumes[id.Volume(s.Name)]
		return has && e <= m.data[id.Volume(s.Name)].moved
	})
}

// checkContent checks that a workload starts with the newest content of its volumes in the cluster, and as
// the only one that writes to them.
func (w *World) checkContent(m *NodeMachine, v *workload, id api.VolumeID) {
	for _, n := range m.cluster.nodes {
		if n == m || n.gone || !m.cluster.knowsVolume(n.id, id) {
			continue
		}
		if _, has := n.volumes[id]; has && n.data[id].content > m.data[id].content {
			w.violate("volume", string(id), "%s starts on %s without what was written on %s", v.Epoch, m.name, n.name)
		}
		for _, o := range w.running[v.Instance] {
			if o.machine == n {
				w.violate("volume", string(id), "%s starts on %s while %s writes to it on %s", v.Epoch, m.name, o.Epoch, n.name)
			}
		}
	}
}

// setTasks replaces the tasks of the cluster's adapter, which copies volumes.
func (m *ClusterMachine) setTasks(all placement.Tasks) {
	before := m.tasks
	m.tasks = all
	for _, t := range all {
		if !slices.ContainsFunc(before, t.Same) {
			m.attempt(t, 0)
		}
	}
}

// attempt carries out a task until it succeeds, the cluster's process ends or the task is no longer wanted.
func (m *ClusterMachine) attempt(t volumemoves.Task, failures int) {
	core := m.core
	wanted := func() bool { return m.proc.alive && m.core == core && slices.ContainsFunc(m.tasks, t.Same) }
	m.w.after(m.w.between(time.Millisecond, 200*time.Millisecond), func() {
		if !wanted() {
			return
		}
		var take func() string
		fault := ""
		if t.Phase == volumemoves.Discarding {
			take = func() string { return m.node(t.To).discard(t) }
		} else {
			take, fault = m.copyVolumes(t)
		}
		m.w.after(m.w.between(time.Millisecond, 2*time.Second), func() {
			if fault == "" { // also without the cluster: the nodes may have finished
				fault = m.carried(t, take)
			}
			if !wanted() {
				return
			}
			if fault != "" {
				failures++
			}
			r := cluster.VolumesCopied{Result: volumemoves.Result{Task: t, Fault: fault, Failures: failures, Bytes: 1 << 20}}
			m.proc.give(r)
			if m.w.sick() && m.w.chance.IntN(8) == 0 {
				m.proc.give(r)
			}
			if fault != "" {
				m.w.after(m.w.between(time.Second, 3*time.Second), func() {
					if wanted() {
						m.attempt(t, failures)
					}
				})
			}
		})
	})
}

// carried lets a target take what was copied to it.
func (m *ClusterMachine) carried(t volumemoves.Task, take func() string) string {
	if n := m.node(t.To); n == nil || n.gone || !n.proc.alive || n.link.conn == 0 {
		return "the target is not connected"
	}
	return take()
}

// copyVolumes reads volumes at their source. take writes them at the target.
func (m *ClusterMachine) copyVolumes(t volumemoves.Task) (take func() string, fault string) {
	from := m.node(t.From)
	if from == nil || from.gone || !from.proc.alive || from.link.conn == 0 {
		return nil, "the source is not connected"
	}
	final := t.Phase == volumemoves.Finishing
	read := map[api.VolumeID]api.NodeVolume{}
	content := map[api.VolumeID]uint64{}
	for _, s := range t.Spec.LocalVolumes() {
		id := t.Instance.Volume(s.Name)
		have, has := from.volumes[id]
		if !has || have.Epoch > t.Epoch {
			return nil, "the source does not have it"
		}
		held := len(from.runtime.have[t.Instance]) > 0
		d := from.data[id]
		if final {
			if held {
				return nil, "a placement has it"
			}
			d.moved = max(d.moved, t.Epoch)
			from.data[id] = d
		}
		read[id], content[id] = have, d.content
	}
	for _, v := range from.runtime.have[t.Instance] { // it goes on during the first pass
		if v.phase == wire.WorkloadRunning {
			from.write(v)
		}
	}
	return func() string { return m.node(t.To).receive(t, read, content, final) }, ""
}

func (m *NodeMachine) receive(t volumemoves.Task, read map[api.VolumeID]api.NodeVolume, content map[api.VolumeID]uint64, final bool) string {
	for id := range read {
		if have, has := m.volumes[id]; has && (have.Epoch > t.Epoch || len(m.runtime.have[t.Instance]) > 0) {
			return "a placement here had it later"
		}
	}
	for id, v := range read {
		m.incoming[id] = incoming{t.Epoch, content[id]}
		if final {
			delete(m.incoming, id)
			m.volumes[id] = api.NodeVolume{ID: id, SizeMB: v.SizeMB, Epoch: t.Epoch}
			m.data[id] = data{content: content[id]}
		}
	}
	if final {
		m.proc.give(node.Volumes{Volumes: m.hasVolumes()})
	}
	return ""
}

// discard is volume.Manager.Discard.
func (m *NodeMachine) discard(t volumemoves.Task) string {
	for _, s := range t.Spec.LocalVolumes() {
		id := t.Instance.Volume(s.Name)
		if m.incoming[id].epoch <= t.Epoch {
			delete(m.incoming, id)
		}
		have, has := m.volumes[id]
		moved := m.data[id].moved
		if !has || have.Epoch > t.Epoch || moved != t.Epoch && (moved != 0 || have.Epoch != t.Epoch) {
			continue
		}
		if len(m.runtime.have[t.Instance]) > 0 {
			return "a placement has it"
		}
		m.w.checkDiscard(m, id)
		delete(m.volumes, id)
		delete(m.data, id)
		m.proc.give(node.Volumes{Volumes: m.hasVolumes()})
	}
	return ""
}

// checkDiscard checks that another machine, which may be lost by now, has what is deleted.
func (w *World) checkDiscard(m *NodeMachine, id api.VolumeID) {
	for _, n := range m.cluster.nodes {
		if _, has := n.volumes[id]; n != m && has && n.data[id].content >= m.data[id].content {
			return
		}
	}
	w.violate("volume", string(id), "the only machine that has its content, %s, deletes it", m.name)
}
