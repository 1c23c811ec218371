package sim

import (
	"slices"

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
		if ok {
			m.w.checkContent(m, v, id)
		} else {
			m.w.checkVolume(m, id, v.Epoch)
		}
		if have.Epoch != v.Epoch {
			m.volumes[id] = api.NodeVolume{ID: id, SizeMB: s.SizeMB, Epoch: v.Epoch}
			changed = true
		}
	}
	m.write(v)
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
// off may begin an earlier placement late, after the instance was withdrawn: a volume that its cluster has
// not heard of does not count.
func (w *World) checkVolume(m *NodeMachine, id api.VolumeID, epoch api.Epoch) {
	for _, c := range w.clusters {
		if _, known := w.root.core.Cluster(c.id); c.gone || !known {
			continue
		}
		if v, known := w.root.core.Volume(id); c != m.cluster && (!known || v.Cluster != c.id) {
			continue
		}
		for _, n := range c.nodes {
			if have, has := n.volumes[id]; has && have.Epoch < epoch && n != m && !n.gone && c.knowsVolume(n.id, id) {
				w.violate("volume", string(id), "is created empty on %s while %s has it", m.name, n.name)
			}
		}
	}
}

// knowsVolume reports whether a node has told the cluster of a volume. A cluster that is down counts as one
// that knows.
func (m *ClusterMachine) knowsVolume(id api.NodeID, v api.VolumeID) bool {
	if m.core == nil {
		return true
	}
	n, ok := m.core.Node(id)
	return ok && slices.ContainsFunc(n.Volumes, func(have api.NodeVolume) bool { return have.ID == v })
}
