package sim

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
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
// off may begin an earlier placement late, after the instance was withdrawn: a volume that its cluster had
// not heard of when it placed the instance does not count.
func (w *World) checkVolume(m *NodeMachine, id api.VolumeID, epoch api.Epoch) {
	for _, c := range w.clusters {
		if _, known := w.root.core.Cluster(c.id); c.gone || !known {
			continue
		}
		if v, known := w.root.core.Volume(id); c != m.cluster && (!known || v.Cluster != c.id) {
			continue
		}
		for _, n := range c.nodes {
			if have, has := n.volumes[id]; has && have.Epoch < epoch && n != m && !n.gone && c.knewVolume(n.id, id, epoch) {
				w.violate("volume", string(id), "is created empty on %s while %s has it", m.name, n.name)
			}
		}
	}
}

// noteKnown records which nodes had told the cluster of volumes when it placed an instance.
func (m *ClusterMachine) noteKnown(d wire.Desired) {
	for _, a := range d.Put {
		k := wire.Key{Instance: a.Instance, Epoch: a.Epoch}
		if _, noted := m.known[k]; noted || len(a.Spec.LocalVolumes()) == 0 {
			continue
		}
		m.known[k] = []api.NodeID{}
		for _, n := range m.nodes {
			if slices.ContainsFunc(a.Spec.LocalVolumes(), func(v api.Volume) bool { return m.knowsVolume(n.id, a.Instance.Volume(v.Name)) }) {
				m.known[k] = append(m.known[k], n.id)
			}
		}
	}
}

// knewVolume reports whether a node had told the cluster of a volume when the cluster placed its instance under an
// epoch.
func (m *ClusterMachine) knewVolume(id api.NodeID, v api.VolumeID, epoch api.Epoch) bool {
	nodes, noted := m.known[wire.Key{Instance: v.Instance(), Epoch: epoch}]
	return m.knowsVolume(id, v) && (!noted || slices.Contains(nodes, id))
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
