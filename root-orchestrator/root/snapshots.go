package root

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/root-orchestrator/root/volumes"
)

// kindSnapshot is the kind of the documents of snapshots of CSI volumes. The key is the id.
const kindSnapshot = "volume_snapshot"

type (
	// BeginSnapshot records that a cluster is asked for a snapshot of a CSI volume. It does nothing if that is
	// recorded. Errors: ErrNotFound (the volume), ErrInvalid (a local one), ErrConflict (the snapshot is ready), ErrTooMany.
	BeginSnapshot struct{ ID api.SnapshotID }
	// SnapshotTaken records what a cluster says about a snapshot.
	SnapshotTaken struct {
		ID api.SnapshotID
		api.SnapshotState
		By string
	}
	// DeleteSnapshot removes the record of a snapshot that its cluster has deleted. Errors: ErrNotFound, ErrConflict
	// (an SLA names it).
	DeleteSnapshot struct {
		ID api.SnapshotID
		By string
	}
)

func (in BeginSnapshot) apply(c *Core) error {
	if s, ok := c.volumes.Snapshot(in.ID); ok {
		if s.Ready {
			return fmt.Errorf("snapshot %s exists already; choose another name, or delete it first: %w", in.ID, api.ErrConflict)
		}
		return nil
	}
	v, ok := c.volumes.Get(in.ID.Volume())
	switch {
	case !ok:
		return fmt.Errorf("volume %s: %w", in.ID.Volume(), api.ErrNotFound)
	case v.Driver == "":
		return fmt.Errorf("volume %s is local: copy its files with treeline snapshot volume --to: %w", v.ID, api.ErrInvalid)
	}
	if err := c.volumes.AdmitSnapshot(in.ID.Tenant()); err != nil {
		return err
	}
	c.putSnapshot(volumes.Snapshot{ID: in.ID, Cluster: v.Cluster, Driver: v.Driver, SizeMB: v.SizeMB, Created: c.wall})
	return nil
}

func (c *Core) putSnapshot(s volumes.Snapshot) {
	s.Revision = c.nextRev()
	c.volumes.PutSnapshot(s)
	c.journal.Put(kindSnapshot, string(s.ID), s)
}

func (in SnapshotTaken) apply(c *Core) error {
	s, ok := c.volumes.Snapshot(in.ID)
	switch {
	case !ok:
		return fmt.Errorf("snapshot %s: %w", in.ID, api.ErrNotFound)
	case in.SizeMB < 0 || in.SizeMB > api.MaxVolumeMB:
		return fmt.Errorf("cluster %s says that snapshot %s has %d MiB, want at most %d: %w", s.Cluster, in.ID, in.SizeMB, int64(api.MaxVolumeMB), api.ErrUnavailable)
	case !in.Ready || s.Ready:
		return nil
	}
	s.SizeMB, s.Ready = max(s.SizeMB, in.SizeMB), true
	c.putSnapshot(s)
	c.snapshotEvent(s, "taken by "+in.By, in.By)
	return nil
}

func (c *instances) snapshotEvent(s volumes.Snapshot, what, by string) {
	c.event(api.Event{Tenant: s.ID.Tenant(), Kind: "volume", Object: s.ID.Volume().Name(), Cluster: s.Cluster, Detail: "snapshot " + s.ID.Label() + " " + what, By: by})
}

func (in DeleteSnapshot) apply(c *Core) error {
	if _, err := c.DeletableSnapshot(in.ID); err != nil {
		return err
	}
	c.dropSnapshot(in.ID, "deleted by "+in.By, in.By)
	return nil
}

func (c *instances) dropSnapshot(id api.SnapshotID, why, by string) {
	s, _ := c.volumes.Snapshot(id)
	c.volumes.RemoveSnapshot(id)
	c.journal.Delete(kindSnapshot, string(id))
	c.snapshotEvent(s, why, by)
}

// Snapshot returns a snapshot, and whether it exists.
func (s *state) Snapshot(id api.SnapshotID) (api.VolumeSnapshot, bool) {
	r, ok := s.volumes.Snapshot(id)
	if !ok {
		return api.VolumeSnapshot{}, false
	}
	return api.VolumeSnapshot{ID: id, Tenant: id.Tenant(), Cluster: r.Cluster, Driver: r.Driver, SizeMB: r.SizeMB, Ready: r.Ready, Created: r.Created, Revision: r.Revision}, true
}

// Snapshots returns the snapshots of a tenant and the tenants below it, sorted by id.
func (s *state) Snapshots(tenant api.Tenant) []api.VolumeSnapshot {
	return list(s.volumes.SnapshotIDs(), tenant, s.Snapshot)
}

// DeletableSnapshot returns a snapshot that can be deleted. Errors: ErrNotFound, ErrConflict (an SLA names it).
func (s *state) DeletableSnapshot(id api.SnapshotID) (api.VolumeSnapshot, error) {
	n, ok := s.Snapshot(id)
	if !ok {
		return n, fmt.Errorf("snapshot %s: %w", id, api.ErrNotFound)
	}
	for _, app := range s.apps.Apps() {
		if app.Tenant() != id.Tenant() {
			continue
		}
		for _, svc := range s.apps.Indexed(app) {
			_, spec := s.apps.Service(svc)
			for _, v := range spec.CSIVolumes() {
				if v.SnapshotOf(app.Tenant()) == id {
					return n, fmt.Errorf("delete snapshot %s: volume %s of service %s is created from it; leave snapshot out of its SLA first: %w", id, v.Name, svc, api.ErrConflict)
				}
			}
		}
	}
	return n, nil
}
