package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// refresh updates the node's candidate and the sums over all nodes. It records whether the
// node has more free than before, so that waiting instances are retried there.
func (m *Machine) refresh(n *node) {
	old, out, left := m.table.Get(string(n.Info.ID)), n.out(), n.account.Left()
	freed, devices := n.account.Changed()
	if old == nil {
		old = &sched.Candidate{Out: "unknown", Slots: make([]sched.Slot, 1)}
	}
	full := old.Slots[0].Full
	same := n.described && old.Out == out && old.Free == left.Free && old.Capacity == n.account.Capacity() && full == left.Full &&
		old.Slots[0].BandwidthUnknown == n.bandwidthUnknown
	if same && !freed && !devices && !n.shifted && old.Load == len(n.assigned) && len(old.Ports) == len(left.Ports) {
		return
	}
	m.changes.Nodes[n.Info.ID] = true
	next := n.candidate(out, left)
	if out == "" && (!n.described || freed || n.shifted || old.Out != "" || left.Free != left.Free.Min(old.Free) || full && !left.Full || moreDevices(old, &next)) {
		m.freedNodes[n.Info.ID] = true
	}
	plain := n.described && old.Out == out
	n.shifted, n.described = false, true
	m.updateSums(n, &next)
	m.version++
	m.table.Put(next)
	m.short.put(&next)
	if !same {
		m.sumsChanged(!plain)
	}
	if n.Closed() && len(n.reserved) > 0 {
		m.lapsedNodes = append(m.lapsedNodes, n.Info.ID)
	}
}

// candidate returns the node as a candidate with the free resources of left.
func (n *node) candidate(out string, left account.Left) sched.Candidate {
	return sched.Candidate{
		ID: string(n.Info.ID), Level: sched.Nodes, Out: out, Capacity: n.account.Capacity(), Free: left.Free,
		Slots: []sched.Slot{{
			Runtimes: n.Info.Runtimes, Arch: n.Info.Arch, Privileged: n.Info.Privileged, Network: n.Info.Network == api.NetworkOverlay, Full: left.Full,
			Areas: n.Info.Areas, Addons: n.Info.Addons, Features: withOwn(n.features), Free: left.Free, Largest: left.Free, Devices: left.Devices,
			BandwidthUnknown: n.bandwidthUnknown,
		}},
		Ports: left.Ports, Own: n.Info.Ports, Load: len(n.assigned), Labels: n.Info.Labels, Geo: n.geo, Coord: n.coord,
	}
}

// withOwn adds to the features of a node those that the cluster provides on every node.
func withOwn(features []string) []string {
	own := []string{api.FeatureSchedule, api.FeatureTurns, api.FeatureVolumeSnapshot}
	if slices.Contains(features, api.FeatureVolumeCopy) {
		own = append(own, api.FeatureMoveVolume)
	}
	if slices.Contains(features, api.FeatureCSIShared) {
		own = append(own, api.FeatureVolumeShared)
	}
	for _, f := range own {
		if at, has := slices.BinarySearch(features, f); !has {
			features = slices.Insert(slices.Clone(features), at, f)
		}
	}
	return features
}

// without returns the node's candidate as if an instance were not on it.
func (n *node) without(id api.InstanceID) sched.Candidate {
	return n.candidate(n.out(), n.account.Without(id))
}

func moreDevices(old, next *sched.Candidate) bool {
	had := old.Slots[0].Devices
	for kind, n := range next.Slots[0].Devices {
		if n > had[kind] {
			return true
		}
	}
	return false
}

// updateSums replaces the node's part of the sums over all nodes. Silent nodes add nothing.
func (m *Machine) updateSums(n *node, cand *sched.Candidate) {
	_, before := m.Offered()
	m.capacity, m.used = m.capacity.Minus(n.weight.capacity), m.used.Minus(n.weight.used)
	n.weight = weight{}
	if cand != nil && !n.Silent {
		n.weight = weight{cand.Capacity, cand.Capacity.Minus(cand.Free)}
	}
	m.capacity, m.used = m.capacity.Plus(n.weight.capacity), m.used.Plus(n.weight.used)
	if _, left := m.Offered(); left != left.Min(before) && len(m.aboveShare) > 0 {
		m.shareGrew = true
	}
}

// weight is a node's part of the sums.
type weight struct{ capacity, used api.Resources }

// maxAmounts bounds what a node reports, so that sums do not overflow: a million vCPUs, a pebibyte,
// a petabit per second.
var maxAmounts = api.Resources{MilliCPU: 1 << 30, MemoryMB: 1 << 30, StorageMB: 1 << 30, InMbit: 1 << 30, OutMbit: 1 << 30}

const (
	coordStep  = 0.05 // smaller moves of a coordinate are ignored, as a fraction of its distance from the origin
	coordTrust = 1.0  // coordinates with this error or a larger one are ignored
)

// setCoord stores the node's position in the latency space if it is valid and differs enough
// from the last one, and reports whether it does.
func (n *node) setCoord(at *api.Coordinate) bool {
	switch {
	case !vivaldi.Valid(at) || at.Error >= coordTrust:
		return false
	case n.coord != nil && !vivaldi.Moved(*at, *n.coord, coordStep):
		return false
	}
	own := *at
	own.Vec = slices.Clone(at.Vec)
	n.coord, n.shifted = &own, true
	return true
}
