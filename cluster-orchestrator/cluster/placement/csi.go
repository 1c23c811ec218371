package placement

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An instance with CSI volumes may run on each node from which all of them are accessible. One that has a volume to
// itself is on one node at a time: its service is exclusive.

// csiVolume is a CSI volume of an instance, or of the instances of a service.
type csiVolume struct {
	driver   string
	topology []map[string]string // it is accessible from nodes in any of them; nil: from all
}

func (v csiVolume) accessible(n *node) bool {
	if len(v.topology) == 0 {
		return true
	}
	i := slices.IndexFunc(n.Info.CSI, func(c api.NodeCSI) bool { return c.Driver == v.driver })
	return i >= 0 && slices.ContainsFunc(v.topology, func(want map[string]string) bool {
		has := n.Info.CSI[i].Topology
		for k, value := range want {
			if got, ok := has[k]; !ok || got != value {
				return false
			}
		}
		return true
	})
}

// keys describes where the volume is accessible: "zone=a or zone=b".
func (v csiVolume) keys() string {
	var all []string
	for _, t := range v.topology {
		var one []string
		for _, k := range slices.Sorted(maps.Keys(t)) {
			one = append(one, k+"="+t[k])
		}
		all = append(all, strings.Join(one, ", "))
	}
	return strings.Join(all, " or ")
}

// SetCSI stores whether an instance or service has a CSI volume, and where it is accessible.
func (m *Machine) SetCSI(id api.VolumeID, driver string, topology []map[string]string, exists bool) {
	owner := ownerOf(id)
	if exists {
		if m.csi[owner] == nil {
			m.csi[owner] = map[string]csiVolume{}
		}
		m.csi[owner][id.Label()] = csiVolume{driver, topology}
	} else if delete(m.csi[owner], id.Label()); len(m.csi[owner]) == 0 {
		delete(m.csi, owner)
	}
	if !id.Shared() {
		m.showVolumes(id.Instance())
		return
	}
	for _, in := range m.sharing(id) {
		m.showVolumes(in)
	}
}

// ownerOf returns the id of the instance or service that a volume belongs to.
func ownerOf(id api.VolumeID) string {
	if id.Shared() {
		return string(id.Service())
	}
	return string(id.Instance())
}

// sharing returns the instances that have a shared volume in their SLA, sorted. They are searched among all: a shared
// volume is created and deleted rarely.
func (m *Machine) sharing(id api.VolumeID) (all []api.InstanceID) {
	for _, i := range step.Keys(m.instances) {
		if i.Service() == id.Service() && slices.Contains(m.instances[i].demand.csi, id) {
			all = append(all, i)
		}
	}
	return all
}

// hasVolumes reports whether the cluster has volumes of an instance that outlive it.
func (m *Machine) hasVolumes(in *instance) bool {
	return m.volumes[in.id()] != nil || m.csi[string(in.id())] != nil ||
		slices.ContainsFunc(in.demand.csi, func(v api.VolumeID) bool { _, has := m.csi[ownerOf(v)][v.Label()]; return has })
}

// boundByVolumes reports whether the instance has volumes that may restrict where it is placed, other than
// its siblings.
func (in *instance) boundByVolumes() bool { return len(in.demand.volumes)+len(in.demand.csi) > 0 }

// bindCSI restricts a request to the nodes from which all CSI volumes of the instance are accessible.
func (m *Machine) bindCSI(req *sched.Request, p requestInput) {
	var bind []csiVolume
	for _, id := range p.demand.csi {
		if v := m.csi[ownerOf(id)][id.Label()]; len(v.topology) > 0 {
			bind = append(bind, v)
		}
	}
	if len(bind) == 0 {
		return
	}
	var keys []string
	for _, v := range bind {
		keys = append(keys, v.keys())
	}
	req.VolumeKeys = strings.Join(slices.Compact(keys), " and ")
	for _, id := range step.Keys(m.nodes) {
		if !slices.ContainsFunc(bind, func(v csiVolume) bool { return !v.accessible(m.nodes[id]) }) {
			req.VolumeIn = append(req.VolumeIn, string(id))
		}
	}
}

// usable returns the features of a node without the CSI drivers that the cluster cannot call.
func (m *Machine) usable(features []string) []string {
	lacks := func(f string) bool {
		driver, csi := api.CSIDriverOf(f)
		return csi && !slices.Contains(m.cfg.CSI, driver) || f == api.FeaturePrometheus
	}
	if slices.ContainsFunc(features, lacks) {
		features = slices.DeleteFunc(slices.Clone(features), lacks)
	}
	if at, _ := slices.BinarySearch(features, api.FeaturePrometheus); m.cfg.Prometheus {
		features = slices.Insert(slices.Clone(features), at, api.FeaturePrometheus)
	}
	return features
}

// VolumeOf returns the CSI volume of a placement in its SLA, and the node as its driver knows it. It fails
// with ErrNotFound if the node does not have the placement, or the volume's driver.
func (m *Machine) VolumeOf(id api.NodeID, w wire.WantVolume) (v api.Volume, at api.NodeCSI, err error) {
	n := m.nodes[id]
	if n == nil || n.assigned[w.Instance] == nil || n.assigned[w.Instance].Epoch != w.Epoch {
		return v, at, fmt.Errorf("node %s does not have the placement %s: %w", id, w.Key, api.ErrNotFound)
	}
	all := n.assigned[w.Instance].Desired.Spec.CSIVolumes()
	i := slices.IndexFunc(all, func(v api.Volume) bool { return v.Name == w.Name })
	if i < 0 {
		return v, at, fmt.Errorf("volume %s of %s: %w", w.Name, w.Instance, api.ErrNotFound)
	}
	k := slices.IndexFunc(n.Info.CSI, func(c api.NodeCSI) bool { return c.Driver == all[i].Driver })
	if k < 0 {
		return v, at, fmt.Errorf("node %s does not have CSI driver %s: %w", id, all[i].Driver, api.ErrNotFound)
	}
	return all[i], n.Info.CSI[k], nil
}

// CSIOf returns the node of an instance and its CSI volumes; none while it has no node.
func (m *Machine) CSIOf(id api.InstanceID) (api.NodeID, []api.VolumeID) {
	in := m.instances[id]
	if in == nil || in.Node == "" {
		return "", nil
	}
	return in.Node, in.demand.csi
}

// MayHave reports whether a node that is not silent may still have an instance with its volumes: it has reported it and not
// its end, or has not reported since it returned.
func (m *Machine) MayHave(id api.NodeID, i api.InstanceID) bool {
	n := m.nodes[id]
	if n == nil {
		return false
	}
	_, has := n.observed[i]
	return has || !n.synced
}
