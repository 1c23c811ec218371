package containerd

import (
	"context"
	"fmt"

	"github.com/containerd/containerd/v2/core/leases"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	"github.com/containerd/errdefs"
)

// Purge implements runtime.Purger: it removes the images of our namespace and their
// snapshots. If the namespace has containers of other programs, it removes only the images
// that we have used.
func (r *Runtime) Purge(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(namespaces.WithNamespace(ctx, r.cfg.Namespace), r.cfg.PullTimeout)
	defer cancel()
	containers, err := r.c.ContainerService().List(ctx)
	if err != nil {
		return reasoned(fmt.Errorf("purge images: %w", err))
	}
	shared := false
	for _, c := range containers {
		if _, ok := c.Extensions[extension]; ok {
			return fmt.Errorf("purge images: container %s is still there", c.ID)
		}
		shared = true
	}
	all, err := r.c.ImageService().List(ctx)
	if err != nil {
		return reasoned(fmt.Errorf("purge images: %w", err))
	}
	for _, img := range all {
		if shared && img.Labels[usedLabel] == "" && img.Labels[archiveLabel] == "" {
			continue
		}
		if err := r.c.ImageService().Delete(ctx, img.Name); err != nil && !errdefs.IsNotFound(err) {
			return reasoned(fmt.Errorf("purge image %q: %w", img.Name, err))
		}
	}
	if shared {
		return r.sweep(ctx)
	}
	// A fetch that was cut off keeps what it had fetched by a lease.
	held, err := r.c.LeasesService().List(ctx)
	if err != nil {
		return reasoned(fmt.Errorf("purge leases: %w", err))
	}
	for _, l := range held {
		if err := r.c.LeasesService().Delete(ctx, l); err != nil && !errdefs.IsNotFound(err) {
			return reasoned(fmt.Errorf("purge lease %s: %w", l.ID, err))
		}
	}
	return r.sweep(ctx)
}

// sweep runs containerd's garbage collector, which removes unused content and snapshots, and
// returns when it is done.
func (r *Runtime) sweep(ctx context.Context) error {
	l, err := r.c.LeasesService().Create(ctx, leases.WithRandomID())
	if err == nil {
		err = r.c.LeasesService().Delete(ctx, l, leases.SynchronousDelete)
	}
	if err != nil {
		return reasoned(fmt.Errorf("collect what removed images used: %w", err))
	}
	return nil
}
