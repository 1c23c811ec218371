package sim

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/node-engine/node"
)

// useVolumes gives the local volumes of its service to a workload that starts, and reports the change
// first, as the node's driver does.
func (m *NodeMachine) useVolumes(v *workload) {
	changed := false
	for _, s := range v.spec.LocalVolumes() {
		id := v.Instance.Volume(s.Name)
		have, ok := m.volumes[id]
		if !ok {
			m.w.checkVolume(m, id, v.Epoch)
		}
		if have.Epoch != v.Epoch {
			m.volumes[id] = api.NodeVolume{ID: id, SizeMB: s.SizeMB, Epoch: v.Epoch}
			changed = true
		}
	}
	if changed {
		m.proc.give(node.Volumes{Volumes: m.hasVolumes()})
	}
}

func (m *NodeMachine) hasVolumes() (out []api.NodeVolume) {
	for _, id := range step.Keys(m.volumes) {
		out = append(out, m.volumes[id])
	}
	return out
}

// checkVolume checks that an instance does not start with an empty volume while another node has the
// volume. Volumes of removed nodes and clusters are lost. In another cluster only the volumes count that
// the root knows: it does not learn of one whose application is deleted first (ADR 0182). A node that was cut
// off may begin an earlier placement late; its volume does not count.
func (w *World) checkVolume(m *NodeMachine, id api.VolumeID, epoch api.Epoch) {
	for _, c := range w.clusters {
		if _, known := w.root.core.Cluster(c.id); c.gone || !known {
			continue
		}
		if v, known := w.root.core.Volume(id); c != m.cluster && (!known || v.Cluster != c.id) {
			continue
		}
		for _, n := range c.nodes {
			if have, has := n.volumes[id]; has && have.Epoch < epoch && n != m && !n.gone {
				w.violate("volume", string(id), "is created empty on %s while %s has it", m.name, n.name)
			}
		}
	}
}
