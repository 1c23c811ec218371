// Package volumes keeps what the cluster knows about the CSI volumes of its instances: what the driver's
// controller created, and the node that each is attached to. It is a sub-machine of the cluster's core.
//
// A record is saved before the controller is asked for anything, so that nothing that it may have done is
// forgotten in a crash.
package volumes

import (
	"fmt"

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

// Begin records that the driver is asked to create a volume, if it is not recorded. It fails with
// ErrConflict if the volume is one of another driver, and as source does for its snapshot, if it names one.
func (m *Machine) Begin(id api.VolumeID, driver string, sizeMB int64, from api.SnapshotID) error {
	r, ok := m.byID[id]
	switch {
	case !ok:
		source, err := m.source(from, driver, sizeMB)
		if err != nil {
			return fmt.Errorf("create volume %s: %w", id, err)
		}
		m.put(Record{ID: id, Driver: driver, SizeMB: sizeMB, Source: source})
	case r.Driver != driver:
		return fmt.Errorf("volume %s is one of CSI driver %s, not of %s; name another volume, or delete this one: %w", id, r.Driver, driver, api.ErrConflict)
	}
	return nil
}

// Created records what the driver created.
func (m *Machine) Created(id api.VolumeID, handle string, context map[string]string, topology []map[string]string) {
	if r, ok := m.byID[id]; ok {
		r.Handle, r.Context, r.Topology = handle, context, topology
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
// ErrConflict if the volume is or may be attached to another node, or belongs to a newer placement.
func (m *Machine) Attach(id api.VolumeID, node api.NodeID, nodeID string, epoch api.Epoch) error {
	r, ok := m.byID[id]
	switch {
	case !ok:
		return fmt.Errorf("volume %s: %w", id, api.ErrNotFound)
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

// Detached records that a volume is not attached to a node any more.
func (m *Machine) Detached(id api.VolumeID, node api.NodeID) {
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
