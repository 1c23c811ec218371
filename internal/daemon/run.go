package daemon

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
)

// Part is a part of a daemon that runs as long as the daemon.
type Part struct {
	Name string
	Run  func(context.Context) error // blocks and leaves nothing behind; nil: not used
}

// RunAll runs the parts until ctx ends or one of them returns, then cancels the others and waits
// for them. It returns the error of the first part that failed. A part that returns nil, or
// context.Canceled after the cancellation, has not failed.
func RunAll(ctx context.Context, parts ...Part) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var g errgroup.Group
	for _, p := range parts {
		if p.Run == nil {
			continue
		}
		g.Go(func() error {
			defer cancel()
			err := p.Run(ctx)
			if err == nil || errors.Is(err, context.Canceled) && ctx.Err() != nil {
				return nil
			}
			return fmt.Errorf("%s: %w", p.Name, err)
		})
	}
	return g.Wait()
}

// Every returns a part that calls fn after each period, until ctx ends.
func Every(period time.Duration, fn func(context.Context)) func(context.Context) error {
	return func(ctx context.Context) error {
		tick := time.NewTicker(period)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				fn(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	}
}
