package volumes

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Snapshot is the document of a snapshot that the driver of a CSI volume keeps. It is saved before its
// cluster is asked for it, and stays when the volume is deleted.
type Snapshot struct {
	ID       api.SnapshotID `json:"id"`
	Cluster  api.ClusterID  `json:"cluster"`
	Driver   string         `json:"driver"`
	SizeMB   int64          `json:"size_mb"`
	Ready    bool           `json:"ready,omitempty"`
	Created  time.Time      `json:"created"`
	Revision api.Revision   `json:"revision"`
}

// MaxSnapshots is the number of snapshots of all tenants.
const MaxSnapshots = 1 << 15

// RestoreSnapshot adds the snapshot of a document.
func (m *Machine) RestoreSnapshot(s Snapshot) { m.PutSnapshot(s) }

// PutSnapshot adds or replaces a snapshot.
func (m *Machine) PutSnapshot(s Snapshot) {
	if _, ok := m.snapshots[s.ID]; !ok {
		m.snapshotsOf[s.ID.Tenant().Top()]++
	}
	m.snapshots[s.ID] = s
}

// Snapshot returns a snapshot, and whether it exists.
func (m *Machine) Snapshot(id api.SnapshotID) (Snapshot, bool) {
	s, ok := m.snapshots[id]
	return s, ok
}

// SnapshotIDs returns the ids of all snapshots, sorted.
func (m *Machine) SnapshotIDs() []api.SnapshotID { return step.Keys(m.snapshots) }

// RemoveSnapshot removes a snapshot, if it exists.
func (m *Machine) RemoveSnapshot(id api.SnapshotID) {
	if _, ok := m.snapshots[id]; !ok {
		return
	}
	delete(m.snapshots, id)
	top := id.Tenant().Top()
	if m.snapshotsOf[top]--; m.snapshotsOf[top] == 0 {
		delete(m.snapshotsOf, top)
	}
}

// AdmitSnapshot returns ErrTooMany if a tenant may not have one more snapshot.
func (m *Machine) AdmitSnapshot(tenant api.Tenant) error {
	top := tenant.Top()
	if have := m.snapshotsOf[top]; have >= api.MaxSnapshots {
		return fmt.Errorf("tenant %s has %d snapshots, the most that it may have; delete some with treeline delete snapshot: %w", top, have, api.ErrTooMany)
	}
	if have := len(m.snapshots); have >= MaxSnapshots {
		return fmt.Errorf("there are %d snapshots, the most that the root keeps: %w", have, api.ErrUnavailable)
	}
	return nil
}

// checkSnapshots returns ErrInvalid if a service's volumes cannot be created from the snapshots in its SLA.
func (m *Machine) checkSnapshots(id api.ServiceID, spec *api.Microservice) error {
	at := map[api.ClusterID]api.SnapshotID{}
	for _, v := range spec.CSIVolumes() {
		if v.Snapshot == "" {
			continue
		}
		s, ok := m.snapshots[v.SnapshotOf(id.Tenant())]
		switch {
		case !ok:
			return fmt.Errorf("volume %s of %s: there is no snapshot %s, see treeline get snapshots: %w", v.Name, id, v.Snapshot, api.ErrInvalid)
		case !s.Ready:
			return fmt.Errorf("volume %s of %s: snapshot %s is not ready yet; treeline snapshot volume waits for it: %w", v.Name, id, v.Snapshot, api.ErrInvalid)
		case s.Driver != v.Driver:
			return fmt.Errorf("volume %s of %s: snapshot %s is one of CSI driver %s, not of %s: %w", v.Name, id, v.Snapshot, s.Driver, v.Driver, api.ErrInvalid)
		case v.SizeMB < s.SizeMB:
			return fmt.Errorf("volume %s of %s: size is %d MiB, and snapshot %s needs at least %d MiB: %w", v.Name, id, v.SizeMB, v.Snapshot, s.SizeMB, api.ErrInvalid)
		}
		at[s.Cluster] = s.ID
	}
	if len(at) > 1 {
		return fmt.Errorf("the volumes of %s are created from snapshots in %d clusters, and an instance is in one: %w", id, len(at), api.ErrInvalid)
	}
	return nil
}
