package driver

import (
	"context"
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Recheck requests a new report of the node's info and workloads to the core, after the runtime, the
// network or the info changed. It does not block.
func (d *Driver) Recheck() {
	select {
	case d.recheck <- struct{}{}:
	default:
	}
}

// deliver delivers an input, and retries until it succeeds or ctx ends.
func (d *Driver) deliver(ctx context.Context, in node.Input) {
	for pause := d.opt.MinPause; ; pause = min(2*pause, d.opt.MaxPause) {
		if d.opt.Deliver(ctx, in) == nil || !sleep(ctx, pause) {
			return
		}
	}
}

func (d *Driver) reportExits(ctx context.Context) {
	for {
		select {
		case x := <-d.exits:
			e := wire.WorkloadEvent{Key: x.Key, Attempt: x.Attempt, Phase: wire.WorkloadExited, ExitCode: x.ExitCode}
			if x.OOM {
				e.Reason, e.Detail = outOfMemory(0)
			}
			d.listing.RLock()
			d.deliver(ctx, node.Workload{WorkloadEvent: e})
			d.listing.RUnlock()
			if d.onNetwork() {
				d.Order(drainExited{x.Key})
			}
		case <-ctx.Done():
			return
		}
	}
}

// watch watches the runtime. It reports to the core when the runtime does not answer, and all its
// workloads when it answers again.
func (d *Driver) watch(ctx context.Context) {
	var silent time.Time // since when it does not answer
	for ctx.Err() == nil {
		began := time.Now()
		err := d.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if silent.IsZero() || time.Since(began) > d.opt.MaxPause {
			silent = time.Now()
		}
		d.opt.Log.Error("runtime does not answer", "err", err)
		info := d.info()
		info.RuntimeError = err.Error()
		d.deliver(ctx, node.Info{Info: info})
		// On a slow machine a runtime needs many seconds to start, and all workloads wait for it: the pause adds
		// at most a quarter to that.
		if !sleep(ctx, min(max(time.Since(silent)/4, d.opt.MinPause), d.opt.MaxPause)) {
			return
		}
	}
}

// watchOnce watches until the runtime ends the watch, hangs, or cannot list its workloads.
func (d *Driver) watchOnce(parent context.Context) (err error) {
	ctx, cancel := context.WithCancel(parent)
	select {
	case <-d.hangs: // from before this watch
	default:
	}
	var watchErr error
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		watchErr = d.opt.Runtime.Watch(ctx, d.exits)
	}()
	defer func() {
		cancel()
		<-ended
	}()
	// Exits before the watch are in the list, later ones are reported by the watch. An exit may be
	// reported twice.
	if err := d.reportAll(ctx); err != nil {
		return err
	}
	for {
		select {
		case <-ended:
			if watchErr == nil {
				watchErr = fmt.Errorf("the watch ended: %w", api.ErrUnavailable)
			}
			return watchErr
		case err := <-d.hangs:
			return err
		case <-d.recheck:
			// Many orders that fail together cause one listing of a busy runtime, not one each.
			if !sleep(ctx, d.opt.MinPause) {
				continue
			}
			select {
			case <-d.recheck:
			default:
			}
			if err := d.reportAll(ctx); err != nil {
				return err
			}
		}
	}
}

// reportAll reports the node's info and all workloads to the core.
func (d *Driver) reportAll(ctx context.Context) error {
	d.listing.Lock()
	defer d.listing.Unlock()
	info := d.info()
	found, err := d.list(ctx, &info)
	if err != nil {
		return err
	}
	differ := d.compareNetwork(ctx, found)
	d.deliver(ctx, node.Info{Info: info, Found: found, Fresh: true})
	for _, k := range differ {
		d.Order(syncNetwork{k})
	}
	return nil
}

// housekeepInterval is the interval of the runtime's housekeeping, and of probes without orders.
const housekeepInterval = 15 * time.Minute

func (d *Driver) housekeep(ctx context.Context) {
	h, ok := d.opt.Runtime.(runtime.Housekeeper)
	if !ok {
		return
	}
	for sleep(ctx, housekeepInterval) {
		d.probe(ctx) // without orders, nothing else detects that the runtime hangs
		if err := h.Housekeep(ctx); err != nil && ctx.Err() == nil {
			d.opt.Log.Warn("runtime housekeeping failed", "err", err)
		}
	}
}

// sleep returns false if ctx ends first.
func sleep(ctx context.Context, t time.Duration) bool {
	timer := time.NewTimer(t)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
