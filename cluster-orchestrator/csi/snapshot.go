package csi

import (
	"context"
	"errors"
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/volumes"
	"github.com/treeline-edge/treeline/internal/csi"
)

// Snapshot has the driver of a volume take a snapshot, or asks it about one that is not ready yet. Callers
// repeat it until it is ready. It goes on without its caller.
func (c *Controller) Snapshot(caller context.Context, id api.SnapshotID) (out api.SnapshotState, err error) {
	unlock, err := c.lock(caller, string(id))
	if err != nil {
		return out, err
	}
	defer unlock()
	if err := c.beginSnapshot(caller, id); err != nil {
		return out, err
	}
	ctx := context.WithoutCancel(caller) // the driver has a timeout
	s, _, err := c.snapshot(ctx, id)
	if err != nil {
		return out, err
	}
	if !s.Ready {
		d, err := c.snapshotter(ctx, s.Driver)
		if err != nil {
			return out, err
		}
		if s, err = c.take(ctx, d, s); err != nil {
			return out, err
		}
	}
	return api.SnapshotState{SizeMB: s.SizeMB, Ready: s.Ready}, nil
}

// beginSnapshot excludes the deletion of the volume, which is refused once the snapshot is recorded.
func (c *Controller) beginSnapshot(ctx context.Context, id api.SnapshotID) error {
	unlock, err := c.lock(ctx, string(id.Volume()))
	if err != nil {
		return err
	}
	defer unlock()
	if _, ok, err := c.snapshot(ctx, id); err != nil || ok {
		return err
	}
	r, ok, err := c.record(ctx, id.Volume())
	if err != nil {
		return err
	}
	if ok { // refuse before anything is recorded
		if _, err := c.snapshotter(ctx, r.Driver); err != nil {
			return err
		}
	}
	return c.do(ctx, cluster.BeginSnapshot{ID: id})
}

func (c *Controller) snapshot(ctx context.Context, id api.SnapshotID) (s volumes.Snapshot, ok bool, err error) {
	err = c.opt.Owner.Read(ctx, func() { s, ok = c.opt.Core.CSISnapshot(id) })
	return s, ok, err
}

// snapshotter returns a driver that can take snapshots.
func (c *Controller) snapshotter(ctx context.Context, name string) (*csi.Driver, error) {
	d, err := c.driver(name)
	if err != nil {
		return nil, err
	}
	can, err := d.Controller(ctx)
	if err == nil && !can.Snapshot {
		err = fmt.Errorf("CSI driver %s cannot take snapshots: %w", name, api.ErrInvalid)
	}
	return d, err
}

// take calls the driver, which returns the existing snapshot if it has taken it already.
func (c *Controller) take(ctx context.Context, d *csi.Driver, s volumes.Snapshot) (volumes.Snapshot, error) {
	// The same volume may be deleted and created anew, so that its handle is in the name.
	got, err := d.CreateSnapshot(ctx, s.ID.Tenant(), c.nameOf(string(s.ID)+"\x00"+s.Source), s.Source)
	if err != nil {
		return s, err
	}
	sizeMB := (got.Bytes + 1<<20 - 1) >> 20
	if err := c.do(ctx, cluster.SnapshotTaken{ID: s.ID, Handle: got.Handle, SizeMB: sizeMB, Ready: got.Ready}); err != nil {
		return s, err
	}
	c.opt.Log.Info("CSI snapshot taken", "snapshot", s.ID, "driver", s.Driver, "handle", got.Handle, "ready", got.Ready)
	s.Handle, s.SizeMB, s.Ready = got.Handle, max(s.SizeMB, sizeMB), got.Ready
	return s, nil
}

// DeleteSnapshot deletes a snapshot. It fails with ErrNotFound if there is none, and with ErrConflict while a
// volume is being created from it.
func (c *Controller) DeleteSnapshot(caller context.Context, id api.SnapshotID) error {
	unlock, err := c.lock(caller, string(id))
	if err != nil {
		return err
	}
	defer unlock()
	ctx := context.WithoutCancel(caller)
	s, ok, err := c.snapshot(ctx, id)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("snapshot %s: %w", id, api.ErrNotFound)
	}
	var busy error
	if err := c.opt.Owner.Read(ctx, func() { busy = c.opt.Core.DeletableSnapshot(id) }); err != nil || busy != nil {
		return errors.Join(err, busy)
	}
	d, err := c.driver(s.Driver)
	if err != nil {
		return err
	}
	if s.Handle == "" { // a snapshot whose answer was lost; its volume cannot have been deleted
		if s, err = c.take(ctx, d, s); err != nil && !errors.Is(err, api.ErrNotFound) {
			return err
		}
	}
	if s.Handle != "" {
		if err := d.DeleteSnapshot(ctx, id.Tenant(), s.Handle); err != nil {
			return err
		}
	}
	c.opt.Log.Info("CSI snapshot deleted", "snapshot", id, "driver", s.Driver)
	return c.do(ctx, cluster.SnapshotDeleted{ID: id})
}
