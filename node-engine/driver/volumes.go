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
	Started(k wire.Key) (changed bool, err error)
	Release(k wire.Key) error
	Sweep(keep []wire.Key)
}

// addVolumes adds to the node's info the types of volumes that it and its runtime support.
func (d *Driver) addVolumes(info *api.NodeInfo, has runtime.Info) {
	if d.opt.Volumes == nil || !has.Mounts {
		return
	}
	for _, t := range d.opt.Volumes.Types() {
		info.Features = append(info.Features[:len(info.Features):len(info.Features)], api.FeatureOfVolume(t))
	}
	slices.Sort(info.Features)
}

func (d *Driver) sweepVolumes(found []wire.WorkloadEvent) {
	if d.opt.Volumes == nil {
		return
	}
	keep := make([]wire.Key, len(found))
	for i, e := range found {
		keep[i] = e.Key
	}
	d.opt.Volumes.Sweep(keep)
}

func (x execution) prepareVolumes(ctx context.Context, o wire.CreateWorkload) ([]runtime.Mount, error) {
	switch {
	case len(o.Spec.Volumes) == 0:
		return nil, nil
	case x.opt.Volumes == nil:
		return nil, runtime.Errorf(api.ReasonNoRuntime, "this node does not support volumes: %w", api.ErrUnavailable)
	}
	return x.opt.Volumes.Prepare(ctx, o.Key, o.Spec.Volumes)
}

// useVolumes reports new local volumes to the core before a workload may write to them, so that the
// cluster does not start the instance elsewhere with empty ones.
func (x execution) useVolumes(k wire.Key) error {
	if x.opt.Volumes == nil {
		return nil
	}
	changed, err := x.opt.Volumes.Started(k)
	if changed {
		x.deliver(x.ctx, node.Volumes{Volumes: x.opt.Volumes.List()})
	}
	return err
}

func (x execution) releaseVolumes(k wire.Key) error {
	if x.opt.Volumes == nil {
		return nil
	}
	return x.opt.Volumes.Release(k)
}
