package driver

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// probeInterval is how long an order may take, beyond a stop's grace, before the runtime is probed,
// and the least time between two probes.
const probeInterval = 30 * time.Second

// execution carries out one order of a placement. It implements wire.WorkloadOrderHandler.
type execution struct {
	*Driver
	ctx context.Context
	q   *queue
	key wire.Key
}

// Fetch fetches the image of a workload when it is its tenant's turn. A stop that is ordered
// meanwhile cancels it.
func (x execution) Fetch(o wire.FetchWorkload) {
	call, cancel := context.WithCancel(x.ctx)
	defer cancel()
	x.mu.Lock()
	x.q.cancel = cancel
	x.mu.Unlock()
	err := x.fetchInTurn(call, o)
	x.mu.Lock()
	x.q.cancel = nil
	x.mu.Unlock()
	e := wire.WorkloadEvent{Key: o.Key, Phase: wire.WorkloadFetched}
	if err != nil {
		if call.Err() != nil {
			return
		}
		e.Reason, e.Detail = runtime.Reason(err), runtime.Detail(err)
		x.opt.Log.Warn("image of the next placement not fetched", "instance", o.Instance, "epoch", o.Epoch, "reason", e.Reason, "err", err)
	}
	x.deliver(x.ctx, node.Workload{WorkloadEvent: e})
}

func (x execution) fetchInTurn(ctx context.Context, o wire.FetchWorkload) error {
	f, ok := x.opt.Runtime.(runtime.Fetcher)
	if !ok {
		return nil // the runtime has no images
	}
	leave, err := x.creates.Enter(ctx, time.Now(), []string{string(o.Instance.Tenant().Top())}, false)
	if err != nil {
		return err
	}
	defer leave()
	defer x.probeAfter(ctx, probeInterval)()
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	w := runtime.Workload{Key: o.Key, Spec: o.Spec}
	if x.opt.Files != nil {
		image := o.Spec
		image.Files = nil // they are written when it is created
		if _, w.Login, err = x.opt.Files.Prepare(ctx, o.Key, &image, o.Values); err != nil {
			return err
		}
	}
	return f.Fetch(ctx, w)
}

// Create creates a workload when it is its tenant's turn. A stop that is ordered meanwhile cancels
// the creation. listing is locked only to report the result: the core accepts a list that has a
// workload that is being created.
func (x execution) Create(o wire.CreateWorkload) {
	call, cancel := context.WithCancel(x.ctx)
	defer cancel()
	x.mu.Lock()
	for _, next := range x.q.orders {
		if _, stop := next.(wire.StopWorkload); stop {
			x.mu.Unlock()
			return
		}
	}
	x.q.cancel = cancel
	x.mu.Unlock()
	began := time.Now()
	err := x.createInTurn(call, o)
	x.mu.Lock()
	x.q.cancel = nil
	x.mu.Unlock()
	if err != nil && call.Err() != nil && x.ctx.Err() == nil {
		return // the stop that cancelled it reports the result
	}
	x.listing.RLock()
	defer x.listing.RUnlock()
	x.traced("create workload", began, o.Attempt, err)
	x.report(x.ctx, wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadCreated}, err)
}

// traced adds a step to the trace of what caused the placement.
func (x execution) traced(step string, began time.Time, attempt int, err error) {
	x.opt.Traces.Step(tracing.OfWorkload(x.key), step, began, err, map[string]string{
		"treeline.node": string(x.opt.Info.ID), "treeline.instance": string(x.key.Instance), "treeline.attempt": strconv.Itoa(attempt),
	})
}

func (x execution) createInTurn(ctx context.Context, o wire.CreateWorkload) error {
	mounts, err := x.prepareCSI(ctx, o) // takes no turn from others while a driver does not answer
	if err != nil {
		return err
	}
	leave, err := x.creates.Enter(ctx, time.Now(), []string{string(o.Instance.Tenant().Top())}, false)
	if err != nil {
		return err
	}
	defer leave()
	defer x.probeAfter(ctx, probeInterval)()
	if err := x.checkNetwork(o.Spec); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, createTimeout)
	defer cancel()
	w := runtime.Workload{Key: o.Key, Attempt: o.Attempt, Spec: o.Spec, Addresses: o.Addresses, Devices: o.Devices}
	switch {
	case x.opt.Files != nil:
		if w.Files, w.Login, err = x.opt.Files.Prepare(ctx, o.Key, &o.Spec, o.Values); err != nil {
			return err
		}
	case len(o.Spec.Files) > 0:
		return runtime.Errorf(api.ReasonNoFiles, "this node's runtime provides no files: %w", api.ErrUnavailable)
	}
	if w.Mounts, err = x.prepareVolumes(ctx, o); err != nil {
		return err
	}
	if w.Layer, err = x.layer(ctx, o); err != nil {
		return err
	}
	w.Mounts = append(w.Mounts, mounts...)
	w.Connect = x.connectEarly()
	err = x.opt.Runtime.Create(ctx, w)
	if err != nil && w.Connect != nil {
		_ = x.detach(context.WithoutCancel(ctx), o.Key)
	}
	return err
}

// Update rewrites the workload's files in the background.
func (x execution) Update(o wire.UpdateFiles) {
	switch {
	case x.opt.Files == nil:
	case len(o.Spec.Files) == 0:
		x.removeFiles()
	default:
		x.opt.Files.Update(o.Key, &o.Spec, o.Values)
	}
}

func (x execution) removeFiles() {
	if x.opt.Files == nil {
		return
	}
	if err := x.opt.Files.Remove(x.key); err != nil {
		x.opt.Log.Warn("files of a workload not deleted", "instance", x.key.Instance, "err", err) // until the next sweep
	}
}

// Start attaches the workload to the network and starts it.
func (x execution) Start(o wire.StartWorkload) {
	defer x.probeAfter(x.ctx, probeInterval)()
	x.listing.RLock()
	defer x.listing.RUnlock()
	call, cancel := context.WithTimeout(x.ctx, startTimeout)
	defer cancel()
	began := time.Now()
	var at wire.Attached
	var w runtime.Workload
	err := x.useVolumes(x.key)
	if err == nil {
		at, w, err = x.attach(call, x.key)
	}
	if err == nil {
		err = x.opt.Runtime.Start(call, x.key)
	}
	x.traced("start workload", began, o.Attempt, err)
	x.report(x.ctx, wire.WorkloadEvent{
		Key: x.key, Attempt: o.Attempt, Phase: wire.WorkloadRunning, Address: at.Address, Ready: at.Ready, ImageHealth: w.ImageHealth,
	}, err)
}

// Kill keeps new flows away from the workload and ends its processes. The runtime's watch reports the
// exit.
func (x execution) Kill(o wire.KillWorkload) {
	defer x.probeAfter(x.ctx, o.Grace+probeInterval)()
	call, cancel := context.WithTimeout(x.ctx, o.Grace+stopTimeout)
	defer cancel()
	if x.onNetwork() && x.opt.Network.Ready() == nil {
		x.drain(call, x.key)
	}
	if err := x.opt.Runtime.Kill(call, x.key, o.Grace); err != nil {
		x.listing.RLock()
		defer x.listing.RUnlock()
		x.report(x.ctx, wire.WorkloadEvent{Key: x.key, Attempt: o.Attempt, Phase: wire.WorkloadExited}, err)
	}
}

// SetReady sets whether the workload gets new flows.
func (x execution) SetReady(o wire.ReadyWorkload) {
	if !x.onNetwork() {
		return
	}
	ctx, cancel := context.WithTimeout(x.ctx, networkTimeout)
	defer cancel()
	if err := x.opt.Network.SetReady(ctx, o.Key, o.Ready); err != nil && x.ctx.Err() == nil {
		x.opt.Log.Warn("readiness not passed to the network", "instance", o.Instance, "epoch", o.Epoch, "ready", o.Ready, "err", err)
		time.AfterFunc(x.opt.MaxPause, x.Recheck) // the core finds the difference
	}
}

// Stop stops the workload and detaches it from the network.
func (x execution) Stop(o wire.StopWorkload) {
	defer x.probeAfter(x.ctx, o.Grace+probeInterval)()
	call, cancel := context.WithTimeout(x.ctx, o.Grace+stopTimeout)
	defer cancel()
	if o.Grace > 0 && x.onNetwork() && x.opt.Network.Ready() == nil && x.drain(call, x.key) {
		sleep(call, drainTime)
	}
	err := x.opt.Runtime.Stop(call, x.key, o.Grace)
	if err == nil {
		_ = x.detach(call, x.key) // the next comparison finds a failure
		x.removeFiles()
		err = x.releaseVolumes(call, x.key)
	}
	x.listing.RLock()
	defer x.listing.RUnlock()
	x.report(x.ctx, wire.WorkloadEvent{Key: x.key, Phase: wire.WorkloadGone}, err)
}

// Detach detaches the workload from the network.
func (x execution) Detach(wire.DetachWorkload) {
	if x.detach(x.ctx, x.key) != nil { // the next comparison finds it, and the core repeats the order
		time.AfterFunc(x.opt.MaxPause, x.Recheck)
	}
}

// Guard sets or lifts the deadline of the workload.
func (x execution) Guard(o wire.GuardWorkload) { x.guard(x.ctx, o) }

func (d *Driver) guard(ctx context.Context, o wire.GuardWorkload) {
	if err := d.setGuard(ctx, o); err != nil {
		d.opt.Log.Warn("workload is not guarded: only this engine stops it when its lease ends", "instance", o.Instance, "epoch", o.Epoch, "err", err)
	}
}

func (d *Driver) setGuard(ctx context.Context, o wire.GuardWorkload) error {
	if d.opt.Guard == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	if o.Until.IsZero() {
		return d.opt.Guard.Lift(ctx, o.Key)
	}
	g, ok := d.opt.Runtime.(runtime.Guarded)
	if !ok {
		return fmt.Errorf("the runtime does not support guards: %w", api.ErrUnavailable)
	}
	cgroup, err := g.CgroupOf(ctx, o.Key)
	if err != nil {
		return err
	}
	return d.opt.Guard.Set(ctx, o.Key, cgroup, o.Until)
}

// probeAfter probes the runtime when an order takes longer than a time, and then every
// probeInterval until done is called. It detects a runtime that hangs with its connection open
// before the order's timeout.
func (d *Driver) probeAfter(ctx context.Context, after time.Duration) (done func()) {
	order, done := context.WithCancel(ctx)
	d.wg.Go(func() {
		for pause := after; sleep(order, pause); pause = probeInterval {
			d.probe(ctx)
		}
	})
	return done
}

// probe asks the runtime for its info, at most once per probeInterval for all orders. It ends the
// watch if the runtime does not answer.
func (d *Driver) probe(ctx context.Context) {
	d.mu.Lock()
	now := time.Now()
	due := d.probedAt.IsZero() || now.Sub(d.probedAt) >= probeInterval
	if due {
		d.probedAt = now
	}
	d.mu.Unlock()
	if !due {
		return
	}
	call, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	if _, err := d.opt.Runtime.Info(call); err != nil && ctx.Err() == nil {
		select {
		case d.hangs <- fmt.Errorf("probe the runtime: %w", err):
		default:
		}
	}
}

// report reports the result of an order to the core: e, or the error.
func (d *Driver) report(ctx context.Context, e wire.WorkloadEvent, err error) {
	if err != nil {
		if ctx.Err() != nil {
			return // the engine ends, not the workload
		}
		wanted := e.Phase
		e.Phase, e.Reason, e.Detail = wire.WorkloadFailed, runtime.Reason(err), runtime.Detail(err)
		d.opt.Log.Warn("runtime order failed", "instance", e.Instance, "epoch", e.Epoch, "wanted", wanted, "reason", e.Reason, "err", err)
		if e.Reason == api.ReasonRuntimeDown || errors.Is(err, api.ErrConflict) {
			d.Recheck() // the runtime's state differs from the core's
		}
	}
	d.deliver(ctx, node.Workload{WorkloadEvent: e})
}
