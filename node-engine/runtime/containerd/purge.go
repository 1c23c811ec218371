package containerd

import (
	"context"
	"errors"
	"fmt"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
)

// Purge implements runtime.Purger: it removes the images of the namespace and their snapshots, and ends the
// shims that are left. If the namespace has containers of other programs, it removes only the images that
// this runtime used.
func (r *Runtime) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.cfg.Namespace), pullTimeout)
	defer cancel()
	if err := r.purge(ctx); err != nil {
		return withReason(fmt.Errorf("purge images: %w", err))
	}
	return nil
}

func (r *Runtime) purge(ctx context.Context) error {
	containers, err := r.c.ContainerService().List(ctx)
	if err != nil {
		return err
	}
	for _, c := range containers {
		if _, ok := c.Extensions[extension]; ok {
			return fmt.Errorf("container %s still exists", c.ID)
		}
	}
	shared := len(containers) > 0
	all, err := r.c.ImageService().List(ctx)
	if err != nil {
		return err
	}
	for _, img := range all {
		if shared && img.Labels[usedLabel] == "" && img.Labels[archiveLabel] == "" {
			continue
		}
		if err := ignoreNotFound(r.c.ImageService().Delete(ctx, img.Name)); err != nil {
			return fmt.Errorf("image %q: %w", img.Name, err)
		}
	}
	leasing := r.c.LeasesService()
	if !shared {
		// An interrupted pull leaves a lease on the fetched content.
		left, err := leasing.List(ctx)
		for _, l := range left {
			err = errors.Join(err, ignoreNotFound(leasing.Delete(ctx, l)))
		}
		if err != nil {
			return fmt.Errorf("leases: %w", err)
		}
		if err := r.endShims(func(string) bool { return true }); err != nil {
			return err
		}
	}
	// The synchronous deletion of a lease runs the garbage collector, which removes unused
	// content and snapshots.
	l, err := leasing.Create(ctx, leases.WithRandomID())
	if err == nil {
		err = leasing.Delete(ctx, l, leases.SynchronousDelete)
	}
	return err
}
