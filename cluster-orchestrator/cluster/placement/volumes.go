package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An instance with local volumes runs only where they are. Nodes report the volumes that a workload
// may have written to. Until the node of a placement confirms that nothing of it is left, the
// instance counts as having volumes there (Record.VolumeNode): the node may have started it and be
// unable to report that.
//
// The disk of a reported volume is booked apart from the claim of its instance: it stays taken while the
// instance has ended, is leaving, or is elsewhere.

// localVolumes are the local volumes of one instance on a node.
type localVolumes struct {
	sizes map[string]int64 // MiB, by name
	epoch api.Epoch        // of the newest placement that had one of them
}

// sum returns the sum of the sizes of the volumes of some names.
func (v localVolumes) sum(names []string) (sum int64) {
	for _, name := range names {
		sum += v.sizes[name]
	}
	return min(sum, maxAmounts.StorageMB)
}

func (v localVolumes) any(names []string) bool {
	return slices.ContainsFunc(names, func(name string) bool { _, has := v.sizes[name]; return has })
}

// volumesPrefix marks the bookings of volumes. No instance has an id that begins with it.
const volumesPrefix = "volumes of "

func volumesOf(id api.InstanceID) api.InstanceID { return volumesPrefix + id }

// placeVolumes records that the node may have local volumes of an instance that is placed there.
func (m *Machine) placeVolumes(n *node, in *instance) {
	id := in.id()
	n.volumesPlaced[id] = max(n.volumesPlaced[id], in.Epoch)
	if m.countVolumes(id, n); n.volumes[id].sizes == nil {
		n.volumesUnseen[id] = true
	}
}

// VolumesPlaced returns the epochs of the last placements with local volumes on a node. The map is
// read-only.
func (m *Machine) VolumesPlaced(id api.NodeID) map[api.InstanceID]api.Epoch {
	return m.nodes[id].volumesPlaced
}

// forgetVolumes forgets the placements of which nothing is left on a node that has reported everything.
func (m *Machine) forgetVolumes(n *node) {
	forgotten := false
	for id := range n.volumesUnseen {
		_, runs := n.observed[id]
		in := m.instances[id]
		if !runs && n.assigned[id] == nil && !n.leaving[id] && (in == nil || in.VolumeNode != n.Info.ID) {
			delete(n.volumesPlaced, id)
			delete(n.volumesUnseen, id)
			forgotten = true
		}
	}
	if forgotten {
		m.cfg.SaveNode(n.Info.ID)
	}
}

// setVolumes stores the volumes that a node reports.
func (m *Machine) setVolumes(n *node) {
	before := n.volumes
	n.volumes = map[api.InstanceID]localVolumes{}
	for _, v := range n.Info.Volumes {
		k := n.volumes[v.ID.Instance()]
		if k.sizes == nil {
			k.sizes = map[string]int64{}
		}
		k.sizes[v.ID.Label()], k.epoch = v.SizeMB, max(k.epoch, v.Epoch)
		n.volumes[v.ID.Instance()] = k
	}
	for _, id := range step.Keys(before) {
		if _, still := n.volumes[id]; !still {
			m.dropVolumes(id, n)
			if _, placed := n.volumesPlaced[id]; placed {
				n.volumesUnseen[id] = true
			}
		}
	}
	for _, id := range step.Keys(n.volumes) {
		delete(n.volumesUnseen, id)
		n.account.Book(volumesOf(id), account.Claim{Resources: api.Resources{StorageMB: n.volumes[id].sum(step.Keys(n.volumes[id].sizes))}})
		n.rebook(id)
		m.countVolumes(id, n)
	}
}

// countVolumes makes the volumes of an instance that a node reports count, if the instance was placed
// there: a node cannot attract instances with volumes that it invents.
func (m *Machine) countVolumes(id api.InstanceID, n *node) {
	if _, placed := n.volumesPlaced[id]; !placed || n.volumes[id].sizes == nil {
		return
	}
	if m.volumes[id] == nil {
		m.volumes[id] = map[api.NodeID]bool{}
	}
	if in := m.instances[id]; !m.volumes[id][n.Info.ID] && in != nil && in.Moving && in.movesVolumes() {
		m.endedOld[id] = true // it can move now
	}
	m.volumes[id][n.Info.ID] = true
	m.showVolumes(id)
}

func (m *Machine) dropVolumes(id api.InstanceID, n *node) {
	if delete(m.volumes[id], n.Info.ID); len(m.volumes[id]) == 0 {
		delete(m.volumes, id)
	}
	n.account.Release(volumesOf(id))
	n.rebook(id)
	m.showVolumes(id)
}

// showVolumes reports to the root whether the cluster has volumes of an instance.
func (m *Machine) showVolumes(id api.InstanceID) {
	if in := m.instances[id]; in != nil && in.volumes != m.hasVolumes(in) {
		in.volumes = !in.volumes
		m.publish(in)
	}
}

// book books a claim of an instance. The disk of volumes that the node reports is booked apart from it.
func (n *node) book(id api.InstanceID, k account.Claim) {
	n.account.Book(id, n.withoutVolumes(id, k))
}

// rebook books the claim of an instance again after its volumes have changed.
func (n *node) rebook(id api.InstanceID) {
	k := n.withoutVolumes(id, n.account.Booked(id))
	if in := n.assigned[id]; in != nil && !in.ended() {
		k = k.Max(n.withoutVolumes(id, in.demand.takes.Claim))
	}
	n.account.Book(id, k)
}

// withoutVolumes returns a claim of an instance without the local volumes that the node reports.
func (n *node) withoutVolumes(id api.InstanceID, k account.Claim) account.Claim {
	have := n.volumes[id]
	if !have.any(k.Volumes) {
		return k
	}
	k.Resources.StorageMB = max(0, k.Resources.StorageMB-have.sum(k.Volumes))
	k.Volumes = slices.DeleteFunc(slices.Clone(k.Volumes), func(name string) bool { _, has := have.sizes[name]; return has })
	return k
}

// volumeNode returns the node that has or may have the local volumes of an instance, "" if there is
// none: its present node, else the one with the newest volumes.
func (m *Machine) volumeNode(p requestInput) api.NodeID {
	if p.node != "" {
		return p.node
	}
	if in := m.instances[p.id]; in != nil && in.Move != nil && !in.Move.Holds() && m.nodes[in.Move.To] != nil {
		return in.Move.To
	}
	best := m.newestVolumes(p.id, p.demand.volumes)
	if in := m.instances[p.id]; best == "" && in != nil && m.nodes[in.VolumeNode] != nil {
		best = in.VolumeNode
	}
	return best
}

// bindVolumes restricts a request to the node that has the local volumes of the instance. Their disk
// is already booked there.
func (m *Machine) bindVolumes(req *sched.Request, p requestInput) {
	m.bindCSI(req, p)
	if len(p.demand.volumes) == 0 {
		return
	}
	req.VolumeAt = string(m.volumeNode(p))
	req.Needs = m.needs(p)
}

// needs returns what an instance needs in addition to its local volumes that exist.
func (m *Machine) needs(p requestInput) api.Resources {
	k := p.demand.takes.Claim
	if n := m.nodes[m.volumeNode(p)]; n != nil && len(p.demand.volumes) > 0 {
		k = n.withoutVolumes(p.id, k)
	}
	return k.Resources
}

// awaitsEnd reports whether an instance may be placed only after its earlier placement has ended,
// which is not confirmed yet.
func (in *instance) awaitsEnd() bool {
	return (in.exclusive() || in.keepsData()) && in.awaitsOldPlacement()
}

func (in *instance) keepsData() bool { return len(in.demand.volumes) > 0 }

// startsOver reports whether an instance that its node cannot run may begin on another node: nothing
// was written to its volumes yet, and another node fits.
func (m *Machine) startsOver(in *instance, req sched.Request) bool {
	if n := m.nodes[in.Node]; !in.keepsData() || in.volumes || n == nil || n.Silent {
		return false
	}
	req.VolumeAt = ""
	_, ok := m.best(&req, in.seed())
	return ok
}

// loseVolumes removes the volumes of a node that is being removed. It returns the instances that
// waited for the node.
func (m *Machine) loseVolumes(n *node) (waited []*instance) {
	for _, id := range step.Keys(n.volumes) {
		m.dropVolumes(id, n)
	}
	for _, id := range step.Keys(m.instances) {
		in := m.instances[id]
		copies := len(in.OldCopies)
		if in.dropCopies(n.Info.ID); in.VolumeNode != n.Info.ID && len(in.OldCopies) == copies {
			continue
		}
		if in.VolumeNode == n.Info.ID {
			in.VolumeNode = ""
		}
		m.save(in)
	}
	for _, id := range m.waiting.List() {
		if in := m.instances[id]; in != nil && in.keepsData() && in.Node == "" {
			waited = append(waited, in)
		}
	}
	return waited
}

// VolumeAt returns the node that has a local volume as it was written last, "" if there is none.
func (m *Machine) VolumeAt(id api.VolumeID) api.NodeID {
	return m.newestVolumes(id.Instance(), []string{id.Label()})
}

// newestVolumes returns the node of the newest placement that had one of these volumes of an instance, ""
// if there is none.
func (m *Machine) newestVolumes(id api.InstanceID, names []string) (best api.NodeID) {
	var newest api.Epoch
	for _, at := range step.Keys(m.volumes[id]) {
		n := m.nodes[at]
		v := n.volumes[id]
		if epoch := min(v.epoch, n.volumesPlaced[id]); v.any(names) && (best == "" || epoch > newest) {
			best, newest = at, epoch
		}
	}
	return best
}

// Volume returns the nodes that have a local volume, in the order of their ids, and whether an instance
// has it or may have it again.
func (m *Machine) Volume(id api.VolumeID) (at []api.NodeID, used bool) {
	if id.Shared() {
		return nil, len(m.sharing(id)) > 0
	}
	owner, label := id.Instance(), id.Label()
	for _, node := range step.Keys(m.volumes[owner]) {
		if m.nodes[node].volumes[owner].any([]string{label}) {
			at = append(at, node)
		}
	}
	in := m.instances[owner]
	return at, in != nil && (slices.Contains(in.demand.volumes, label) || slices.Contains(in.demand.csi, id))
}
