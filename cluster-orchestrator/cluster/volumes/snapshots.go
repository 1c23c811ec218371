package volumes

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
)

// SnapshotKind is the kind of the documents of snapshots. The key is the snapshot's id.
const SnapshotKind = "csi_snapshot"

// Snapshot is the document of a snapshot of a CSI volume. It stays when its volume is deleted.
type Snapshot struct {
	ID     api.SnapshotID `json:"id"`
	Driver string         `json:"driver"`
	Source string         `json:"source"`           // the driver's id of the volume
	SizeMB int64          `json:"size_mb"`          // of a volume that is created from it, at least
	Handle string         `json:"handle,omitempty"` // the driver's id; empty: it may exist, and its creation is repeated
	Ready  bool           `json:"ready,omitempty"`  // a volume can be created from it
}

// RestoreSnapshot adds the snapshot of a document.
func (m *Machine) RestoreSnapshot(s Snapshot) { m.snapshots[s.ID] = s }

// Snapshot returns a snapshot, and whether it exists.
func (m *Machine) Snapshot(id api.SnapshotID) (Snapshot, bool) {
	s, ok := m.snapshots[id]
	return s, ok
}

func (m *Machine) putSnapshot(s Snapshot) {
	m.snapshots[s.ID] = s
	m.fx.Journal.Put(SnapshotKind, string(s.ID), s)
}

// BeginSnapshot records that the driver is asked for a snapshot, if it is not recorded. It fails with
// ErrNotFound if its volume does not exist, and with ErrTooMany if its tenant has too many.
func (m *Machine) BeginSnapshot(id api.SnapshotID) error {
	if _, ok := m.snapshots[id]; ok {
		return nil
	}
	r, ok := m.byID[id.Volume()]
	if !ok || r.Handle == "" {
		return fmt.Errorf("volume %s: %w", id.Volume(), api.ErrNotFound)
	}
	have := 0
	for other := range m.snapshots {
		if other.Tenant().Top() == id.Tenant().Top() {
			have++
		}
	}
	if have >= api.MaxSnapshots {
		return fmt.Errorf("tenant %s has %d snapshots in this cluster, the most that it may have: %w", id.Tenant().Top(), have, api.ErrTooMany)
	}
	m.putSnapshot(Snapshot{ID: id, Driver: r.Driver, Source: r.Handle, SizeMB: r.SizeMB})
	return nil
}

// SnapshotTaken records what the driver says about a snapshot. SizeMB of 0 is unknown.
func (m *Machine) SnapshotTaken(id api.SnapshotID, handle string, sizeMB int64, ready bool) {
	s, ok := m.snapshots[id]
	if next := (Snapshot{s.ID, s.Driver, s.Source, max(s.SizeMB, sizeMB), handle, ready || s.Ready}); ok && next != s {
		m.putSnapshot(next)
	}
}

// DeletableSnapshot returns ErrConflict while a volume is being created from a snapshot.
func (m *Machine) DeletableSnapshot(id api.SnapshotID) error {
	s := m.snapshots[id]
	for _, r := range m.byID {
		if s.Handle != "" && r.Source == s.Handle && r.Driver == s.Driver && r.Handle == "" {
			return fmt.Errorf("delete snapshot %s: a volume is being created from it: %w", id, api.ErrConflict)
		}
	}
	return nil
}

// Deletable returns ErrConflict while the driver may be asked for a snapshot of a volume, whose id could
// not be learned without it.
func (m *Machine) Deletable(id api.VolumeID) error {
	for _, s := range m.snapshots {
		if s.ID.Volume() == id && s.Handle == "" {
			return fmt.Errorf("delete volume %s: its snapshot %s is not complete; repeat treeline snapshot volume, or delete the snapshot first: %w", id, s.ID.Name(), api.ErrConflict)
		}
	}
	return nil
}

// RemoveSnapshot removes a snapshot that the driver has deleted.
func (m *Machine) RemoveSnapshot(id api.SnapshotID) {
	if _, ok := m.snapshots[id]; ok {
		delete(m.snapshots, id)
		m.fx.Journal.Delete(SnapshotKind, string(id))
	}
}

// source returns the driver's id of a snapshot that a volume can be created from.
func (m *Machine) source(id api.SnapshotID, driver string, sizeMB int64) (string, error) {
	if id == "" {
		return "", nil
	}
	s, ok := m.snapshots[id]
	switch {
	case !ok:
		return "", fmt.Errorf("snapshot %s does not exist in this cluster: %w", id.Name(), api.ErrNotFound)
	case s.Driver != driver:
		return "", fmt.Errorf("snapshot %s is one of CSI driver %s, not of %s: %w", id.Name(), s.Driver, driver, api.ErrInvalid)
	case sizeMB < s.SizeMB:
		return "", fmt.Errorf("snapshot %s needs a volume of at least %d MiB, not of %d: %w", id.Name(), s.SizeMB, sizeMB, api.ErrInvalid)
	case !s.Ready:
		return "", fmt.Errorf("snapshot %s is not ready yet; repeat treeline snapshot volume, which waits for it: %w", id.Name(), api.ErrUnavailable)
	}
	return s.Handle, nil
}
