package runtime

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Purger is a Runtime that keeps more than its workloads, such as images. Purge removes that,
// after all workloads were stopped. It is idempotent.
type Purger interface {
	Purge(ctx context.Context) error
}

const (
	purgeGrace       = 5 * time.Second // of each workload
	purgeConcurrency = 8               // workloads to stop at a time
)

// Purge stops every workload of the runtime and removes everything that it keeps for them. It
// is idempotent.
func Purge(ctx context.Context, rt Runtime) error {
	all, err := rt.List(ctx)
	if err != nil {
		return fmt.Errorf("list the workloads: %w", err)
	}
	stops, each := errgroup.WithContext(ctx)
	stops.SetLimit(purgeConcurrency)
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
