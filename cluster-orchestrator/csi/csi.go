// Package csi gives CSI volumes to placements and deletes them, by the controllers of their drivers. The
// core decides which placement has a volume, and keeps what was done; each step is saved before the driver
// is asked for it, and may be repeated.
package csi

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/volumes"
	"github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Options configure a Controller.
type Options struct {
	Cluster api.ClusterID
	Drivers map[string]*csi.Driver
	Core    *cluster.Core
	Owner   Owner
	Log     *slog.Logger
}

// Owner runs the core.
type Owner interface {
	Do(ctx context.Context, in cluster.Input, after func()) error
	Read(ctx context.Context, fn func()) error
}

// Controller is safe for concurrent use.
type Controller struct {
	opt Options

	mu   sync.Mutex               // guards the field below
	busy map[string]chan struct{} // by the id of a volume or snapshot
}

// New returns a Controller.
func New(o Options) *Controller { return &Controller{opt: o, busy: map[string]chan struct{}{}} }

// lock waits until nobody else changes a volume or snapshot. That of a snapshot is taken before that of its
// volume.
func (c *Controller) lock(ctx context.Context, id string) (unlock func(), err error) {
	for {
		c.mu.Lock()
		held := c.busy[id]
		if held == nil {
			own := make(chan struct{})
			c.busy[id] = own
			c.mu.Unlock()
			return func() {
				c.mu.Lock()
				delete(c.busy, id)
				c.mu.Unlock()
				close(own)
			}, nil
		}
		c.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for the earlier request about %s: %w", id, ctx.Err())
		}
	}
}

func (c *Controller) driver(name string) (*csi.Driver, error) {
	if d := c.opt.Drivers[name]; d != nil {
		return d, nil
	}
	return nil, fmt.Errorf("the cluster does not have CSI driver %s in its configuration (key csi): %w", name, api.ErrUnavailable)
}

func (c *Controller) record(ctx context.Context, id api.VolumeID) (r volumes.Record, ok bool, err error) {
	err = c.opt.Owner.Read(ctx, func() { r, ok = c.opt.Core.CSIVolume(id) })
	return r, ok, err
}

func (c *Controller) do(ctx context.Context, in cluster.Input) error {
	return c.opt.Owner.Do(ctx, in, nil)
}

// Attach creates the volume of a placement if it does not exist, makes it as large as the SLA says,
// detaches it from an earlier node, and attaches it to the placement's node. The core never has a placement
// while an earlier one may run.
func (c *Controller) Attach(ctx context.Context, node api.NodeID, w wire.WantVolume) (out wire.VolumeAttached, err error) {
	id := w.Volume()
	unlock, err := c.lock(ctx, string(id))
	if err != nil {
		return out, err
	}
	defer unlock()
	if err := c.do(ctx, cluster.BeginVolume{Node: node, WantVolume: w}); err != nil {
		return out, err
	}
	var v api.Volume
	var at api.NodeCSI
	var r volumes.Record
	var failed error
	if err := c.opt.Owner.Read(ctx, func() {
		v, at, failed = c.opt.Core.VolumeOf(node, w)
		r, _ = c.opt.Core.CSIVolume(id)
	}); err != nil || failed != nil {
		return out, errors.Join(err, failed)
	}
	d, err := c.driver(r.Driver)
	if err != nil {
		return out, err
	}
	can, err := d.Controller(ctx)
	if err != nil {
		return out, err
	}
	if r.Handle == "" {
		if err := c.create(ctx, d, can, &r, v, at); err != nil {
			return out, err
		}
	}
	if v.SizeMB > r.SizeMB {
		if err := c.expand(ctx, d, can, &r, v.SizeMB); err != nil {
			return out, err
		}
	}
	if r.Node != "" && r.Node != node {
		if err := c.detach(ctx, d, can, r); err != nil {
			return out, err
		}
	}
	if err := c.do(ctx, cluster.AttachVolume{Node: node, WantVolume: w}); err != nil {
		return out, err
	}
	out = wire.VolumeAttached{Handle: r.Handle, Context: r.Context, SizeMB: r.SizeMB, Expand: r.Expand}
	if can.Attach {
		out.Attachment, err = d.Attach(ctx, id.Tenant(), csi.Volume{Handle: r.Handle, Context: r.Context}, at.NodeID, v.ReadOnly && can.ReadOnly)
	}
	if err == nil {
		c.opt.Log.Info("CSI volume attached", "volume", id, "driver", r.Driver, "node", node)
	}
	return out, err
}

// nameOf returns the name under which the driver creates a volume, or a snapshot of a volume. It is the same
// at each attempt.
func (c *Controller) nameOf(id string) string {
	sum := sha256.Sum256([]byte(string(c.opt.Cluster) + "\x00" + id))
	return "treeline-" + hex.EncodeToString(sum[:16])
}

func (c *Controller) create(ctx context.Context, d *csi.Driver, can csi.ControllerService, r *volumes.Record, v api.Volume, at api.NodeCSI) error {
	if !can.Create {
		return fmt.Errorf("CSI driver %s cannot create volumes: %w", r.Driver, api.ErrInvalid)
	}
	got, err := d.Create(ctx, r.ID.Tenant(), csi.NewVolume{Name: c.nameOf(string(r.ID)), Bytes: r.SizeMB << 20, Parameters: v.Config, Near: at.Topology, Snapshot: r.Source})
	if err != nil {
		return err
	}
	r.Handle, r.Context = got.Handle, got.Context
	if err := c.do(ctx, cluster.VolumeCreated{ID: r.ID, Handle: got.Handle, Context: got.Context, Topology: got.Topology}); err != nil {
		return err
	}
	c.opt.Log.Info("CSI volume created", "volume", r.ID, "driver", r.Driver, "handle", got.Handle)
	return nil
}

func (c *Controller) expand(ctx context.Context, d *csi.Driver, can csi.ControllerService, r *volumes.Record, sizeMB int64) error {
	if !can.Expand {
		return fmt.Errorf("volume %s has %d MiB, and CSI driver %s cannot expand it to %d MiB: %w", r.ID, r.SizeMB, r.Driver, sizeMB, api.ErrInvalid)
	}
	onNode, err := d.Expand(ctx, r.ID.Tenant(), r.Handle, sizeMB<<20)
	if err != nil {
		return err
	}
	r.SizeMB, r.Expand = sizeMB, r.Expand || onNode
	return c.do(ctx, cluster.VolumeGrown{ID: r.ID, SizeMB: sizeMB, OnNode: onNode})
}

func (c *Controller) detach(ctx context.Context, d *csi.Driver, can csi.ControllerService, r volumes.Record) error {
	if can.Attach {
		if err := d.Detach(ctx, r.ID.Tenant(), r.Handle, r.NodeID); err != nil {
			return err
		}
	}
	if err := c.do(ctx, cluster.VolumeDetached{ID: r.ID, Node: r.Node}); err != nil {
		return err
	}
	c.opt.Log.Info("CSI volume detached", "volume", r.ID, "driver", r.Driver, "node", r.Node)
	return nil
}

// Detach detaches a volume from a node that has nothing of the placement mounted any more. It succeeds if
// the volume is attached for another placement or does not exist.
func (c *Controller) Detach(ctx context.Context, node api.NodeID, w wire.WantVolume) error {
	unlock, err := c.lock(ctx, string(w.Volume()))
	if err != nil {
		return err
	}
	defer unlock()
	r, ok, err := c.record(ctx, w.Volume())
	if err != nil || !ok || r.Node != node || r.Epoch > w.Epoch {
		return err
	}
	d, err := c.driver(r.Driver)
	if err != nil {
		return err
	}
	can, err := d.Controller(ctx)
	if err != nil {
		return err
	}
	return c.detach(ctx, d, can, r)
}

// Delete detaches and deletes a volume that no instance has. It fails with ErrNotFound if there is none.
func (c *Controller) Delete(ctx context.Context, id api.VolumeID) error {
	unlock, err := c.lock(ctx, string(id))
	if err != nil {
		return err
	}
	defer unlock()
	r, ok, err := c.record(ctx, id)
	if err != nil {
		return err
	}
	if !ok {
		return fmt.Errorf("volume %s: %w", id, api.ErrNotFound)
	}
	var busy error
	if err := c.opt.Owner.Read(ctx, func() { busy = c.opt.Core.DeletableCSI(id) }); err != nil || busy != nil {
		return errors.Join(err, busy)
	}
	d, err := c.driver(r.Driver)
	if err != nil {
		return err
	}
	can, err := d.Controller(ctx)
	if err != nil {
		return err
	}
	if r.Handle == "" { // a creation whose answer was lost
		v, err := d.Create(ctx, id.Tenant(), csi.NewVolume{Name: c.nameOf(string(id)), Bytes: r.SizeMB << 20, Snapshot: r.Source})
		if r.Source != "" && errors.Is(err, api.ErrNotFound) {
			return c.do(ctx, cluster.VolumeDeleted{ID: id}) // its snapshot was deleted meanwhile, so that it was not created
		}
		if err != nil {
			return err
		}
		r.Handle = v.Handle
		if err := c.do(ctx, cluster.VolumeCreated{ID: id, Handle: v.Handle, Context: v.Context, Topology: v.Topology}); err != nil {
			return err
		}
	}
	if r.Node != "" {
		if err := c.detach(ctx, d, can, r); err != nil {
			return err
		}
	}
	if err := d.Delete(ctx, id.Tenant(), r.Handle); err != nil {
		return err
	}
	return c.do(ctx, cluster.VolumeDeleted{ID: id})
}
