package driver

import (
	"context"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Volumes keeps the volumes of workloads. Its methods are idempotent, and their errors are
// *runtime.Error.
//
// Prepare creates and mounts the volumes of a placement. It fails with ErrConflict while another
// placement has one of them.
//
// Layer returns the directory for what an attempt of a placement writes outside its volumes, up to a
// size. It is empty at first.
//
// Started records that a workload is being started, which may write to its volumes; changed reports
// whether List changed.
//
// Release unmounts the volumes of a placement of which no workload exists, and deletes those that do
// not outlive it.
//
// Sweep releases the volumes of placements that are not in keep and that this process did not prepare.
type Volumes interface {
	Types() []string
	List() []api.NodeVolume
	Prepare(ctx context.Context, k wire.Key, all []api.Volume) ([]runtime.Mount, error)
	Layer(ctx context.Context, k wire.Key, attempt int, sizeMB int64) (dir string, err error)
	Started(k wire.Key) (changed bool, err error)
	Release(k wire.Key) error
	Sweep(keep []wire.Key)
}

// CSI mounts the volumes of CSI drivers. Its methods are idempotent, and their errors are *runtime.Error.
//
// Prepare mounts the volumes of a placement. It may take minutes. Started fails if they are not mounted any
// more. Release unmounts the volumes of a placement of which no workload exists. Sweep releases those of
// placements that are not in keep and that this process did not prepare, in the background.
//
// Nodes returns the drivers that serve the node. Driver.Recheck is called when they change. MayBeEphemeral reports
// whether a driver may mount volumes of type api.VolumeCSIEphemeral.
type CSI interface {
	Nodes() []api.NodeCSI
	MayBeEphemeral(driver string) bool
	Prepare(ctx context.Context, k wire.Key, all []api.Volume) ([]runtime.Mount, error)
	Started(k wire.Key) error
	Release(ctx context.Context, k wire.Key) error
	Sweep(keep []wire.Key)
}

// addVolumes adds to the node's info the types of volumes that it and its runtime support.
func (d *Driver) addVolumes(info *api.NodeInfo, has runtime.Info) {
	if !has.Mounts {
		return
	}
	info.Features = slices.Clone(info.Features)
	if d.opt.Volumes != nil {
		if d.limitsStorage(has) {
			info.Features = append(info.Features, api.FeatureStorage)
		}
		for _, t := range d.opt.Volumes.Types() {
			info.Features = append(info.Features, api.FeatureOfVolume(t))
			if t == api.VolumeLocal {
				info.Features = append(info.Features, api.FeatureVolumeCopy)
			}
		}
	}
	if d.opt.CSI != nil {
		info.CSI = d.opt.CSI.Nodes()
		info.Features = append(info.Features, api.FeatureCSIShared)
		for _, c := range info.CSI {
			info.Features = append(info.Features, api.FeatureOfCSI(c.Driver))
			if d.opt.CSI.MayBeEphemeral(c.Driver) {
				info.Features = append(info.Features, api.FeatureOfEphemeralCSI(c.Driver))
			}
		}
	}
	slices.Sort(info.Features)
}

// limitsStorage reports whether the node can limit what containers write.
func (d *Driver) limitsStorage(has runtime.Info) bool {
	return has.Layers && slices.Contains(d.opt.Volumes.Types(), api.VolumeEphemeral)
}

// layer returns the directory for what a workload writes, "" if its SLA does not limit that. A node that
// cannot limit it does not announce that and gets no such instance; one from an earlier release goes on
// without a limit.
func (x execution) layer(ctx context.Context, o wire.CreateWorkload) (string, error) {
	if o.Spec.Storage == 0 || x.opt.Volumes == nil {
		return "", nil
	}
	has, err := x.opt.Runtime.Info(ctx)
	if err != nil || !x.limitsStorage(has) {
		return "", err
	}
	return x.opt.Volumes.Layer(ctx, o.Key, o.Attempt, o.Spec.Storage)
}

func (d *Driver) sweepVolumes(found []wire.WorkloadEvent) {
	if d.opt.Volumes == nil && d.opt.CSI == nil {
		return
	}
	keep := make([]wire.Key, len(found))
	for i, e := range found {
		keep[i] = e.Key
	}
	if d.opt.Volumes != nil {
		d.opt.Volumes.Sweep(keep)
	}
	if d.opt.CSI != nil {
		d.opt.CSI.Sweep(keep)
	}
}

func (x execution) prepareVolumes(ctx context.Context, o wire.CreateWorkload) ([]runtime.Mount, error) {
	all := slices.DeleteFunc(slices.Clone(o.Spec.Volumes), api.Volume.OfDriver)
	switch {
	case len(all) == 0:
		return nil, nil
	case x.opt.Volumes == nil:
		return nil, runtime.Errorf(api.ReasonNoRuntime, "this node does not support volumes: %w", api.ErrUnavailable)
	}
	return x.opt.Volumes.Prepare(ctx, o.Key, all)
}

// prepareCSI mounts the CSI volumes of a placement.
func (x execution) prepareCSI(ctx context.Context, o wire.CreateWorkload) ([]runtime.Mount, error) {
	all := slices.DeleteFunc(slices.Clone(o.Spec.Volumes), func(v api.Volume) bool { return !v.OfDriver() })
	switch {
	case len(all) == 0:
		return nil, nil
	case x.opt.CSI == nil:
		return nil, runtime.Errorf(api.ReasonVolumeDriver, "this node has no CSI drivers in its configuration (key csi): %w", api.ErrUnavailable)
	}
	return x.opt.CSI.Prepare(ctx, o.Key, all)
}

// useVolumes reports new local volumes to the core before a workload may write to them, so that the
// cluster does not start the instance elsewhere with empty ones.
func (x execution) useVolumes(k wire.Key) error {
	if x.opt.CSI != nil {
		if err := x.opt.CSI.Started(k); err != nil {
			return err
		}
	}
	if x.opt.Volumes == nil {
		return nil
	}
	changed, err := x.opt.Volumes.Started(k)
	if changed {
		x.deliver(x.ctx, node.Volumes{Volumes: x.opt.Volumes.List()})
	}
	return err
}

func (x execution) releaseVolumes(ctx context.Context, k wire.Key) error {
	if x.opt.CSI != nil {
		if err := x.opt.CSI.Release(ctx, k); err != nil {
			return err
		}
	}
	if x.opt.Volumes == nil {
		return nil
	}
	return x.opt.Volumes.Release(k)
}
