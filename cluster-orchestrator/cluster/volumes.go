package cluster

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/volumes"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// The steps of giving a CSI volume to a placement. The adapter that calls the drivers (package csi of the
// orchestrator) takes them for one volume at a time.
type (
	// BeginVolume records that the volume of a placement is being created. Refused with ErrNotFound if
	// the node does not have the placement, and with ErrConflict if the volume is one of another driver.
	BeginVolume struct {
		Node api.NodeID
		wire.WantVolume
	}
	// VolumeCreated records what the driver created.
	VolumeCreated struct {
		ID       api.VolumeID
		Handle   string
		Context  map[string]string
		Topology []map[string]string
	}
	// VolumeRefused records that the driver has refused to create a volume, so that there is none.
	VolumeRefused struct{ ID api.VolumeID }
	// VolumeConfirmed records that the driver has confirmed the access mode of a shared volume.
	VolumeConfirmed struct{ ID api.VolumeID }
	// VolumeGrown records that the driver has expanded a volume. OnNode: the node has to do so, too.
	VolumeGrown struct {
		ID     api.VolumeID
		SizeMB int64
		OnNode bool
	}
	// AttachVolume records that the driver is asked to attach a volume to the node of a placement. Refused
	// as BeginVolume, and with ErrConflict if the volume may be attached elsewhere.
	AttachVolume struct {
		Node api.NodeID
		wire.WantVolume
	}
	// VolumeReleased records that a node has nothing of a shared volume mounted for a placement any more.
	VolumeReleased struct {
		ID   api.VolumeID
		Node api.NodeID
		wire.Key
	}
	// VolumeDetached records that a volume is not attached to a node any more.
	VolumeDetached struct {
		ID   api.VolumeID
		Node api.NodeID
	}
	// VolumeDeleted removes a volume that the driver has deleted.
	VolumeDeleted struct{ ID api.VolumeID }

	// BeginRestore books the disk of a restore of a local volume. Refused with ErrNotFound, ErrConflict (it is being
	// restored) and ErrFull. EndRestore releases it.
	BeginRestore struct {
		ID api.VolumeID
		At api.NodeID
	}
	EndRestore struct {
		ID api.VolumeID
		At api.NodeID
	}

	// BeginSnapshot records that the driver is asked for a snapshot. Refused with ErrNotFound if its volume
	// does not exist, and with ErrTooMany.
	BeginSnapshot struct{ ID api.SnapshotID }
	// SnapshotTaken records what the driver says about a snapshot. SizeMB of 0 is unknown.
	SnapshotTaken struct {
		ID     api.SnapshotID
		Handle string
		SizeMB int64
		Ready  bool
	}
	// SnapshotDeleted removes a snapshot that the driver has deleted.
	SnapshotDeleted struct{ ID api.SnapshotID }
)

func (in BeginVolume) apply(c *Core) error {
	v, _, err := c.place.VolumeOf(in.Node, in.WantVolume)
	if err != nil {
		return err
	}
	id := v.IDFor(in.Instance)
	if err := c.volumes.Begin(id, v); err != nil {
		return err
	}
	c.showVolume(id)
	return nil
}

func (in VolumeCreated) apply(c *Core) error {
	if err := c.volumes.Created(in.ID, in.Handle, in.Context, in.Topology); err != nil {
		return err
	}
	c.showVolume(in.ID)
	return nil
}

func (in VolumeRefused) apply(c *Core) error {
	c.volumes.Refused(in.ID)
	return nil
}

func (in VolumeConfirmed) apply(c *Core) error {
	c.volumes.Confirmed(in.ID)
	return nil
}

func (in VolumeGrown) apply(c *Core) error {
	c.volumes.Grown(in.ID, in.SizeMB, in.OnNode)
	return nil
}

func (in AttachVolume) apply(c *Core) error {
	v, at, err := c.place.VolumeOf(in.Node, in.WantVolume)
	if err != nil {
		return err
	}
	return c.volumes.Attach(v.IDFor(in.Instance), in.Node, at.NodeID, in.Instance, in.Epoch)
}

func (in VolumeReleased) apply(c *Core) error {
	c.volumes.Released(in.ID, in.Node, in.Instance, in.Epoch)
	return nil
}

func (in VolumeDetached) apply(c *Core) error {
	c.volumes.Detached(in.ID, in.Node)
	return nil
}

func (in VolumeDeleted) apply(c *Core) error {
	c.volumes.Remove(in.ID)
	c.showVolume(in.ID)
	return nil
}

func (in BeginRestore) apply(c *Core) error {
	return c.place.BeginRestore(in.ID, in.At)
}

func (in EndRestore) apply(c *Core) error {
	c.place.EndRestore(in.ID, in.At)
	return nil
}

func (in BeginSnapshot) apply(c *Core) error { return c.volumes.BeginSnapshot(in.ID) }

func (in SnapshotTaken) apply(c *Core) error {
	c.volumes.SnapshotTaken(in.ID, in.Handle, in.SizeMB, in.Ready)
	return nil
}

func (in SnapshotDeleted) apply(c *Core) error {
	c.volumes.RemoveSnapshot(in.ID)
	return nil
}

// CSISnapshot returns a snapshot of a CSI volume, and whether it exists.
func (c *Core) CSISnapshot(id api.SnapshotID) (volumes.Snapshot, bool) { return c.volumes.Snapshot(id) }

// DeletableSnapshot returns ErrConflict while a snapshot cannot be deleted.
func (c *Core) DeletableSnapshot(id api.SnapshotID) error { return c.volumes.DeletableSnapshot(id) }

// DeletableCSI returns ErrConflict while a CSI volume cannot be deleted.
func (c *Core) DeletableCSI(id api.VolumeID) error {
	if _, used := c.Volume(id); used {
		return fmt.Errorf("delete volume %s: %s has it: %w", id, id.Owner(), api.ErrConflict)
	}
	return c.volumes.Deletable(id)
}

func (in VolumesCopied) apply(c *Core) error {
	c.place.MoveResult(in.Result)
	return nil
}

// GoneFrom returns the nodes that a shared volume is attached to and that the cluster does not have any more.
func (c *Core) GoneFrom(id api.VolumeID) (gone []api.NodeID) {
	r, _ := c.volumes.Get(id)
	for _, n := range step.Keys(r.Nodes) {
		if _, has := c.Node(n); !has {
			gone = append(gone, n)
		}
	}
	return gone
}

// KeptAttached returns why a volume must not be detached yet from the node that has it for an earlier placement,
// and after which time to look again. Both are zero if it may be detached. The node may still write back what is
// cached: the workload of a silent node has ended with its lease, but unmounting takes as long as the disk needs.
func (c *Core) KeptAttached(id api.VolumeID, to api.NodeID) (again time.Duration, why string) {
	r, _ := c.volumes.Get(id)
	if r.Node == "" || r.Node == to {
		return 0, ""
	}
	n, known := c.members.Node(r.Node)
	switch {
	case !known:
		return 0, ""
	case n.Silent:
		if again = c.cfg.DetachAfter - c.members.SilentFor(r.Node); again <= 0 {
			return 0, ""
		}
		return again, fmt.Sprintf("volume %s may still be mounted on node %s, which is silent; it is detached in %s, or when the node returns or is removed", id.Label(), r.Node, again.Round(time.Second))
	case c.place.MayHave(r.Node, id.Instance()):
		return time.Second, fmt.Sprintf("volume %s may still be mounted on node %s, which has not reported the end of an earlier placement", id.Label(), r.Node)
	}
	return 0, ""
}

// MoveTasks returns what is to be copied and deleted for moves with volumes.
func (c *Core) MoveTasks() placement.Tasks {
	if c.restored != nil {
		return nil // they are as old as the snapshot, and may delete copies that are in use
	}
	return c.place.Tasks()
}

// showVolume passes on where a volume is accessible.
func (c *Core) showVolume(id api.VolumeID) {
	r, ok := c.volumes.Get(id)
	c.place.SetCSI(id, r.Driver, r.Topology, ok)
}

// CSIVolume returns a CSI volume, and whether it exists.
func (c *Core) CSIVolume(id api.VolumeID) (volumes.Record, bool) { return c.volumes.Get(id) }

// VolumeOf returns the CSI volume of a placement in its SLA, and the node as its driver knows it. It fails
// with ErrNotFound if the node does not have the placement.
func (c *Core) VolumeOf(n api.NodeID, w wire.WantVolume) (api.Volume, api.NodeCSI, error) {
	return c.place.VolumeOf(n, w)
}
