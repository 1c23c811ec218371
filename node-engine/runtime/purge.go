package runtime

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Purger is a Runtime that keeps more than its workloads, such as images. Purge
// removes that; no workload is left when it is called. It may be called twice.
type Purger interface {
	Purge(ctx context.Context) error
}

const (
	purgeGrace  = 5 * time.Second // that workloads get to end in
	purgeAtOnce = 8               // workloads that are stopped at a time
)

// Purge stops every workload that the runtime has and removes all that it keeps for
// them. It may be called again after it failed or was cut off.
func Purge(ctx context.Context, rt Runtime) error {
	all, err := rt.List(ctx)
	if err != nil {
		return fmt.Errorf("list the workloads: %w", err)
	}
	stops, each := errgroup.WithContext(ctx)
	stops.SetLimit(purgeAtOnce)
	for _, s := range all {
		stops.Go(func() error { return rt.Stop(each, s.Key, purgeGrace) })
	}
	if err := stops.Wait(); err != nil {
		return err
	}
	if p, ok := rt.(Purger); ok {
		return p.Purge(ctx)
	}
	return nil
}
