// Package volumes keeps what the cluster knows about the CSI volumes of its instances: what the driver's
// controller created, and the node that each is attached to. It is a sub-machine of the cluster's core.
//
// A volume with an access mode belongs to a service. It is attached to several nodes, and to each of them for the
// placements that asked for it there.
//
// A record is saved before the controller is asked for anything, so that nothing that it may have done is
// forgotten in a crash.
package volumes

import (
	"fmt"
	"maps"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
)

// Kind is the kind of the documents. The key is the volume's id.
const Kind = "csi_volume"

// Record is the document of a volume.
type Record struct {
	ID       api.VolumeID        `json:"id"`
	Driver   string              `json:"driver"`
	SizeMB   int64               `json:"size_mb"`
	Handle   string              `json:"handle,omitempty"` // the driver's id; empty: it may exist, and its creation is repeated
	Context  map[string]string   `json:"context,omitempty"`
	Topology []map[string]string `json:"topology,omitempty"` // it is accessible from nodes in any of them; nil: from all
	// Node is the node that it is attached to, or may be: the driver was asked to attach it.
	Node   api.NodeID `json:"node,omitempty"`
	NodeID string     `json:"node_id,omitempty"` // of Node, at the driver
	Epoch  api.Epoch  `json:"epoch,omitempty"`   // of the placement that it is attached for
	Expand bool       `json:"expand,omitempty"`  // the controller has expanded it, and its node has to do so
	Source string     `json:"source,omitempty"`  // the driver's id of the snapshot that it is created from

	Access    string                    `json:"access,omitempty"`    // see api.Volume.Access; Node, NodeID and Epoch are empty with it
	Confirmed bool                      `json:"confirmed,omitempty"` // the driver has confirmed Access
	Nodes     map[api.NodeID]Attachment `json:"nodes,omitempty"`     // with Access: as Node
	Refused   bool                      `json:"refused,omitempty"`   // the driver refused to create it, so that there is none
}

// Attachment is what a shared volume is attached to a node for. Records share it, so that it is not changed.
type Attachment struct {
	NodeID string                       `json:"node_id"` // at the driver
	For    map[api.InstanceID]api.Epoch `json:"for"`     // the newest placement of each instance
}

// MaxPlacements limits the placements that a shared volume is attached for.
const MaxPlacements = 1 << 12

// Attached reports whether a volume is or may be attached to some node.
func (r Record) Attached() bool { return r.Node != "" || len(r.Nodes) > 0 }

func (r Record) placements() (n int) {
	for _, a := range r.Nodes {
		n += len(a.For)
	}
	return n
}

// Machine has all volumes. It is not safe for concurrent use.
type Machine struct {
	fx        *effects.Sink
	byID      map[api.VolumeID]Record
	snapshots map[api.SnapshotID]Snapshot
}

// New returns a Machine without volumes.
func New(fx *effects.Sink) *Machine {
	return &Machine{fx: fx, byID: map[api.VolumeID]Record{}, snapshots: map[api.SnapshotID]Snapshot{}}
}

// Restore adds the volume of a document.
func (m *Machine) Restore(r Record) { m.byID[r.ID] = r }

// Get returns a volume, and whether it exists.
func (m *Machine) Get(id api.VolumeID) (Record, bool) {
	r, ok := m.byID[id]
	return r, ok
}

// All returns the volumes in the order of their ids.
func (m *Machine) All() (out []Record) {
	for _, id := range step.Keys(m.byID) {
		out = append(out, m.byID[id])
	}
	return out
}

func (m *Machine) put(r Record) {
	m.byID[r.ID] = r
	m.fx.Journal.Put(Kind, string(r.ID), r)
}

// Begin records that the driver is asked to create a volume in an SLA, if it is not recorded. It fails with
// ErrConflict if the volume is one of another driver or access mode, and as source does for its snapshot, if it names one.
func (m *Machine) Begin(id api.VolumeID, v api.Volume) error {
	r, ok := m.byID[id]
	switch {
	case !ok:
		source, err := m.source(v.SnapshotOf(id.Tenant()), v.Driver, v.SizeMB)
		if err != nil {
			return fmt.Errorf("create volume %s: %w", id, err)
		}
		m.put(Record{ID: id, Driver: v.Driver, Access: v.Access, SizeMB: v.SizeMB, Source: source})
	case r.Driver != v.Driver:
		return fmt.Errorf("volume %s is one of CSI driver %s, not of %s; name another volume, or delete this one: %w", id, r.Driver, v.Driver, api.ErrConflict)
	case r.Access != v.Access:
		return fmt.Errorf("volume %s has access_mode %s, not %s; name another volume, or delete this one: %w", id, r.Access, v.Access, api.ErrConflict)
	case r.Refused:
		r.Refused = false // the driver is asked again, and its answer may be lost
		m.put(r)
	}
	return nil
}

// Created records what the driver created. It fails with ErrConflict if another volume has the handle: then the driver
// would give the files of one service to another one.
func (m *Machine) Created(id api.VolumeID, handle string, context map[string]string, topology []map[string]string) error {
	r, ok := m.byID[id]
	if !ok {
		return nil
	}
	for other, o := range m.byID {
		if other != id && o.Driver == r.Driver && o.Handle == handle {
			return fmt.Errorf("create volume %s: CSI driver %s answered with the id of another volume: %w", id, r.Driver, api.ErrConflict)
		}
	}
	r.Handle, r.Context, r.Topology, r.Refused = handle, context, topology, false
	m.put(r)
	return nil
}

// Refused records that the driver has refused to create a volume, so that there is none.
func (m *Machine) Refused(id api.VolumeID) {
	if r, ok := m.byID[id]; ok && r.Handle == "" && !r.Refused {
		r.Refused = true
		m.put(r)
	}
}

// Confirmed records that the driver has confirmed the access mode of a volume.
func (m *Machine) Confirmed(id api.VolumeID) {
	if r, ok := m.byID[id]; ok && !r.Confirmed {
		r.Confirmed = true
		m.put(r)
	}
}

// Grown records that the controller has expanded a volume.
func (m *Machine) Grown(id api.VolumeID, sizeMB int64, onNode bool) {
	if r, ok := m.byID[id]; ok {
		r.SizeMB, r.Expand = sizeMB, r.Expand || onNode
		m.put(r)
	}
}

// Attach records that the driver is asked to attach a volume to a node for a placement. It fails with
// ErrConflict if the volume is not shared and is or may be attached to another node, or belongs to a newer placement.
func (m *Machine) Attach(id api.VolumeID, node api.NodeID, nodeID string, instance api.InstanceID, epoch api.Epoch) error {
	r, ok := m.byID[id]
	switch {
	case !ok:
		return fmt.Errorf("volume %s: %w", id, api.ErrNotFound)
	case r.Access != "":
		return m.attachShared(r, node, nodeID, instance, epoch)
	case r.Node != "" && r.Node != node:
		return fmt.Errorf("volume %s is attached to another node: %w", id, api.ErrConflict)
	case epoch < r.Epoch:
		return fmt.Errorf("volume %s belongs to the newer placement %s: %w", id, r.Epoch, api.ErrConflict)
	}
	if r.Node != node || r.NodeID != nodeID || r.Epoch != epoch {
		r.Node, r.NodeID, r.Epoch = node, nodeID, epoch
		m.put(r)
	}
	return nil
}

func (m *Machine) attachShared(r Record, node api.NodeID, nodeID string, instance api.InstanceID, epoch api.Epoch) error {
	a, attached := r.Nodes[node]
	had, has := a.For[instance]
	switch {
	case attached && a.NodeID != nodeID:
		return fmt.Errorf("volume %s is attached to the node under its earlier name at the driver, %s: %w", r.ID, a.NodeID, api.ErrConflict)
	case has && epoch < had:
		return fmt.Errorf("volume %s is attached for the newer placement %s of %s: %w", r.ID, had, instance, api.ErrConflict)
	case has && epoch == had:
		return nil
	case !has && r.placements() >= MaxPlacements:
		return fmt.Errorf("volume %s is attached for %d placements, the most that are kept; remove nodes that are gone: %w", r.ID, MaxPlacements, api.ErrFull)
	}
	a = Attachment{NodeID: nodeID, For: maps.Clone(a.For)}
	if a.For == nil {
		a.For = map[api.InstanceID]api.Epoch{}
	}
	a.For[instance] = epoch
	r.Nodes = maps.Clone(r.Nodes)
	if r.Nodes == nil {
		r.Nodes = map[api.NodeID]Attachment{}
	}
	r.Nodes[node] = a
	m.put(r)
	return nil
}

// Released records that a node has nothing of a shared volume mounted for a placement any more. A request for an earlier
// placement has no effect on a later one. The attachment stays until Detached, see Unused.
func (m *Machine) Released(id api.VolumeID, node api.NodeID, instance api.InstanceID, epoch api.Epoch) {
	r := m.byID[id]
	a := r.Nodes[node]
	if had, has := a.For[instance]; !has || epoch < had {
		return
	}
	a.For = maps.Clone(a.For)
	delete(a.For, instance)
	r.Nodes = maps.Clone(r.Nodes)
	r.Nodes[node] = a
	m.put(r)
}

// Unused reports whether a shared volume is attached to a node for no placement.
func (r Record) Unused(node api.NodeID) bool {
	a, ok := r.Nodes[node]
	return ok && len(a.For) == 0
}

// Detached records that a volume is not attached to a node any more.
func (m *Machine) Detached(id api.VolumeID, node api.NodeID) {
	if r, ok := m.byID[id]; ok && r.Access != "" {
		if _, attached := r.Nodes[node]; attached {
			r.Nodes = maps.Clone(r.Nodes)
			delete(r.Nodes, node)
			m.put(r)
		}
		return
	}
	if r, ok := m.byID[id]; ok && r.Node == node {
		r.Node, r.NodeID, r.Expand = "", "", false
		m.put(r)
	}
}

// Remove removes a volume that the driver has deleted.
func (m *Machine) Remove(id api.VolumeID) {
	if _, ok := m.byID[id]; ok {
		delete(m.byID, id)
		m.fx.Journal.Delete(Kind, string(id))
	}
}
