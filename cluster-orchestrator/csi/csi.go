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
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/volumes"
	"github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

var _ = fairshare.Declare(fairshare.Bound{
	Resource: "placements that a shared CSI volume is attached for", Total: volumes.MaxPlacements, Per: "volume",
	Beyond: "507; placements that have the volume keep it", Attack: "TestPlacementsOfASharedVolumeAreBounded",
})

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

// Attach creates the volume of a placement if it does not exist, makes it as large as the SLA says, and attaches it to
// the placement's node. One that the placement has to itself is detached from an earlier node first: the core never has
// a placement while an earlier one may run. A shared one is detached from nodes that have been removed.
func (c *Controller) Attach(ctx context.Context, node api.NodeID, w wire.WantVolume) (out wire.VolumeAttached, err error) {
	id, err := c.idOf(ctx, node, w)
	if err != nil {
		return out, err
	}
	if err := c.awaitRelease(ctx, node, id); err != nil {
		return out, err
	}
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
	var gone []api.NodeID
	var failed error
	if err := c.opt.Owner.Read(ctx, func() {
		v, at, failed = c.opt.Core.VolumeOf(node, w)
		r, _ = c.opt.Core.CSIVolume(id)
		gone = c.opt.Core.GoneFrom(id)
	}); err != nil || failed != nil {
		return out, errors.Join(err, failed)
	}
	if r.ID != v.IDFor(w.Instance) {
		return out, fmt.Errorf("volume %s of %s: its access_mode has changed meanwhile: %w", w.Name, w.Instance, api.ErrConflict)
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
	if r.Access != "" && !r.Confirmed {
		if err := d.Confirm(ctx, id.Tenant(), csi.Volume{Handle: r.Handle, Context: r.Context, Access: r.Access}, v.Config); err != nil {
			return out, err
		}
		if err := c.do(ctx, cluster.VolumeConfirmed{ID: id}); err != nil {
			return out, err
		}
	}
	if v.SizeMB > r.SizeMB {
		if err := c.expand(ctx, d, can, &r, v.SizeMB); err != nil {
			return out, err
		}
	}
	if r.Node != "" && r.Node != node {
		if err := c.detach(ctx, d, can, r, r.Node, r.NodeID); err != nil {
			return out, err
		}
	}
	for _, n := range gone {
		if err := c.detach(ctx, d, can, r, n, r.Nodes[n].NodeID); err != nil {
			return out, err
		}
	}
	if err := c.do(ctx, cluster.AttachVolume{Node: node, WantVolume: w}); err != nil {
		return out, err
	}
	out = wire.VolumeAttached{Handle: r.Handle, Context: r.Context, SizeMB: r.SizeMB, Expand: r.Expand}
	if can.Attach {
		// All placements on a node attach a shared volume alike, so that read_only of the SLA, which may change, has no part in it.
		readOnly := v.ReadOnly && !v.Shared() || v.Access == api.AccessManyReaders
		out.Attachment, err = d.Attach(ctx, id.Tenant(), csi.Volume{Handle: r.Handle, Context: r.Context, Access: r.Access}, at.NodeID, readOnly && can.ReadOnly)
	}
	if err == nil {
		c.opt.Log.Info("CSI volume attached", "volume", id, "driver", r.Driver, "node", node)
	}
	return out, err
}

// awaitRelease waits while a volume must stay attached to the node of an earlier placement, see cluster.Core.KeptAttached.
// It looks again every second at the latest, because the node may return or be removed.
func (c *Controller) awaitRelease(ctx context.Context, node api.NodeID, id api.VolumeID) error {
	for told := false; ; told = true {
		var again time.Duration
		var why string
		if err := c.opt.Owner.Read(ctx, func() { again, why = c.opt.Core.KeptAttached(id, node) }); err != nil || why == "" {
			return err
		}
		if !told {
			c.opt.Log.Info("CSI volume stays attached for now", "volume", id, "to_node", node, "reason", why)
		}
		select {
		case <-time.After(min(again, time.Second)):
		case <-ctx.Done():
			return fmt.Errorf("%s: %w", why, errors.Join(api.ErrUnavailable, ctx.Err()))
		}
	}
}

// idOf returns the id of the volume of a placement. It fails with ErrNotFound if the node does not have the placement.
func (c *Controller) idOf(ctx context.Context, node api.NodeID, w wire.WantVolume) (id api.VolumeID, err error) {
	var failed error
	err = c.opt.Owner.Read(ctx, func() {
		var v api.Volume
		v, _, failed = c.opt.Core.VolumeOf(node, w)
		id = v.IDFor(w.Instance)
	})
	return id, errors.Join(err, failed)
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
	got, err := d.Create(ctx, r.ID.Tenant(), csi.NewVolume{Name: c.nameOf(string(r.ID)), Bytes: r.SizeMB << 20, Access: r.Access, Parameters: v.Config, Near: at.Topology, Snapshot: r.Source})
	if refused(err) {
		return errors.Join(err, c.do(ctx, cluster.VolumeRefused{ID: r.ID}))
	}
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

// refused reports whether a driver has refused a request as such, so that it did nothing.
func refused(err error) bool {
	e, ok := errors.AsType[*csi.Error](err)
	return ok && errors.Is(e, api.ErrInvalid)
}

func (c *Controller) expand(ctx context.Context, d *csi.Driver, can csi.ControllerService, r *volumes.Record, sizeMB int64) error {
	if !can.Expand {
		return fmt.Errorf("volume %s has %d MiB, and CSI driver %s cannot expand it to %d MiB: %w", r.ID, r.SizeMB, r.Driver, sizeMB, api.ErrInvalid)
	}
	onNode, err := d.Expand(ctx, r.ID.Tenant(), csi.Volume{Handle: r.Handle, Access: r.Access}, sizeMB<<20)
	if err != nil {
		return err
	}
	r.SizeMB, r.Expand = sizeMB, r.Expand || onNode
	return c.do(ctx, cluster.VolumeGrown{ID: r.ID, SizeMB: sizeMB, OnNode: onNode})
}

// otherNode reports whether a shared volume is attached to another node of the same name at the driver. Nodes report the
// name: a machine may have joined again under another id, and a hostile one may give that of another machine.
func otherNode(r volumes.Record, node api.NodeID, nodeID string) bool {
	for n, a := range r.Nodes {
		if n != node && a.NodeID == nodeID {
			return true
		}
	}
	return false
}

func (c *Controller) detach(ctx context.Context, d *csi.Driver, can csi.ControllerService, r volumes.Record, node api.NodeID, nodeID string) error {
	r, _, err := c.record(ctx, r.ID)
	if err != nil {
		return err
	}
	if can.Attach && !otherNode(r, node, nodeID) {
		if err := d.Detach(ctx, r.ID.Tenant(), r.Handle, nodeID); err != nil {
			return err
		}
	}
	if err := c.do(ctx, cluster.VolumeDetached{ID: r.ID, Node: node}); err != nil {
		return err
	}
	c.opt.Log.Info("CSI volume detached", "volume", r.ID, "driver", r.Driver, "node", node)
	return nil
}

// Detach detaches a volume from a node that has nothing of the placement mounted any more. It succeeds if
// the volume is attached for another placement or does not exist. The placement may have ended, so that its SLA does not
// tell whether the volume was shared: a node has at most one of the two.
func (c *Controller) Detach(ctx context.Context, node api.NodeID, w wire.WantVolume) error {
	own, shared := w.IDs()
	return errors.Join(c.detachFrom(ctx, node, own, w.Key), c.detachFrom(ctx, node, shared, w.Key))
}

func (c *Controller) detachFrom(ctx context.Context, node api.NodeID, id api.VolumeID, k wire.Key) error {
	unlock, err := c.lock(ctx, string(id))
	if err != nil {
		return err
	}
	defer unlock()
	r, ok, err := c.record(ctx, id)
	if err != nil || !ok {
		return err
	}
	nodeID := r.NodeID
	if r.Access != "" {
		if err := c.do(ctx, cluster.VolumeReleased{ID: id, Node: node, Key: k}); err != nil {
			return err
		}
		if r, _, err = c.record(ctx, id); err != nil || !r.Unused(node) {
			return err
		}
		nodeID = r.Nodes[node].NodeID
	} else if r.Node != node || r.Epoch > k.Epoch {
		return nil
	}
	d, err := c.driver(r.Driver)
	if err != nil {
		return err
	}
	can, err := d.Controller(ctx)
	if err != nil {
		return err
	}
	return c.detach(ctx, d, can, r, node, nodeID)
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
	if r.Handle == "" && r.Refused {
		return c.do(ctx, cluster.VolumeDeleted{ID: id})
	}
	if r.Handle == "" { // a creation whose answer was lost
		v, err := d.Create(ctx, id.Tenant(), csi.NewVolume{Name: c.nameOf(string(id)), Bytes: r.SizeMB << 20, Access: r.Access, Snapshot: r.Source})
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
		if err := c.detach(ctx, d, can, r, r.Node, r.NodeID); err != nil {
			return err
		}
	}
	for _, n := range step.Keys(r.Nodes) {
		if err := c.detach(ctx, d, can, r, n, r.Nodes[n].NodeID); err != nil {
			return err
		}
	}
	if err := d.Delete(ctx, id.Tenant(), r.Handle); err != nil {
		return err
	}
	return c.do(ctx, cluster.VolumeDeleted{ID: id})
}
