// Package driver carries out the orders of a node's core in its runtime, and reports their results
// and the events of workloads to the core.
//
// It carries out the orders for one placement in sequence, except that a guard is moved during a
// start or a stop. Placements do not wait for each other, except that the number of concurrent
// creations is limited.
//
//	d := driver.New(driver.Options{Runtime: rt, Deliver: deliver, Info: info})
//	info, found, err := d.Find(ctx)      // for node.Start
//	g.Go(func() error { return d.Run(ctx) })
//	d.Order(wire.StartWorkload{…})       // from the loop's send function
package driver

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/tracing"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Timeouts of the runtime's calls. One that hangs delays its own placement only.
const (
	createTimeout = 15 * time.Minute // an image may have to be fetched over a slow link
	startTimeout  = time.Minute
	stopTimeout   = 2 * time.Minute // beyond the grace: a runtime limits concurrent stops
	listTimeout   = 30 * time.Second
	infoTimeout   = 10 * time.Second
)

// Guard kills workloads at a deadline, even if the engine does not run.
type Guard interface {
	// Set schedules a kill of the processes in the cgroup at until. It replaces an earlier deadline of k.
	Set(ctx context.Context, k wire.Key, cgroup string, until time.Time) error
	// Lift removes the deadline of k. It succeeds if there is none.
	Lift(ctx context.Context, k wire.Key) error
}

// Files writes the files of workloads that are not part of their images (package files).
type Files interface {
	Prepare(ctx context.Context, k wire.Key, spec *api.Microservice, refs []wire.ValueRef) (*runtime.Files, *runtime.Login, error)
	Update(k wire.Key, spec *api.Microservice, refs []wire.ValueRef)
	Remove(k wire.Key) error
	// Sweep removes the files of workloads that neither the runtime has nor were prepared since the
	// start.
	Sweep(has []wire.Key) error
}

type Options struct {
	Runtime runtime.Runtime
	// Deliver passes an input to the core and returns when it is saved. The driver retries it until
	// it succeeds, since the runtime does not repeat events.
	Deliver func(ctx context.Context, in node.Input) error
	Info    api.NodeInfo            // of the node, without the runtime's part
	Guard   Guard                   // nil: without the engine, leases are not enforced
	Files   Files                   // nil: workloads have no files besides those of their images
	Network Network                 // nil: workloads have no overlay network
	Devices func() []api.NodeDevice // for Info; nil: none. Call Recheck when they change
	Ports   func() *api.NodePorts   // for Info; nil: unknown. Call Recheck when they change
	Volumes Volumes                 // nil: services with volumes are refused
	CSI     CSI                     // nil: services with CSI volumes are refused
	Traces  *tracing.Relay          // of placements; nil: none is followed
	Creates int                     // concurrent creations; default 4
	Log     *slog.Logger            // default slog.Default

	// The pauses between attempts to reach a runtime that does not answer: 500 ms to 10 s.
	MinPause, MaxPause time.Duration
}

var createTurns = fairshare.Declare(fairshare.Bound{
	Resource: "images to pull and workloads to create that wait at a node", Total: 1 << 16, Per: "tenant",
	Beyond: "5 at once, 4 of one tenant, and tenants take turns; the newest of the tenant with most fails and is tried again",
	Attack: "TestSlowPullsOfOneTenantLeaveRoomForOthers",
})

type Driver struct {
	opt     Options
	creates *fairshare.Turns // by tenant
	exits   chan runtime.Exit

	// listing is held for writing while the runtime's workloads are listed and reported, and for
	// reading while a result or an exit is reported. Otherwise a list could arrive at the core after
	// a result that is newer.
	listing sync.RWMutex

	mu       sync.Mutex // guards the fields below
	ctx      context.Context
	closed   bool
	queues   map[wire.Key]*queue
	probedAt time.Time     // when the runtime was probed last
	recheck  chan struct{} // see Recheck
	hangs    chan error    // capacity 1: the error of a runtime that does not answer on an open connection
	wg       sync.WaitGroup
}

// queue has the waiting orders for one placement.
type queue struct {
	orders  []wire.WorkloadOrder
	cancel  context.CancelFunc  // of the creation that runs; a stop calls it
	running bool                // a start, a stop or a kill runs: the guard is moved meanwhile
	moveTo  *wire.GuardWorkload // the next position of the guard
	moved   chan struct{}       // closed when the guard is moved; nil: it is not being moved
}

// New returns a driver. It carries out nothing before Run.
func New(o Options) *Driver {
	o.Creates = cmp.Or(o.Creates, 4)
	o.Log = cmp.Or(o.Log, slog.Default())
	o.MinPause = cmp.Or(o.MinPause, 500*time.Millisecond)
	o.MaxPause = cmp.Or(o.MaxPause, 10*time.Second)
	return &Driver{
		opt:     o,
		creates: fairshare.NewTurns(createTurns, o.Creates+1, o.Creates), // leaves a turn for other tenants
		exits:   make(chan runtime.Exit, 64),
		queues:  map[wire.Key]*queue{},
		recheck: make(chan struct{}, 1),
		hangs:   make(chan error, 1),
	}
}

// Find returns the node's info and the workloads of its runtime. If the runtime does not answer, the
// error is in Info.RuntimeError too.
func (d *Driver) Find(ctx context.Context) (api.NodeInfo, []wire.WorkloadEvent, error) {
	info := d.info()
	found, err := d.list(ctx, &info)
	if err != nil {
		info.RuntimeError = err.Error()
		return info, nil, err
	}
	d.compareNetwork(ctx, found)
	return info, found, nil
}

// list returns the runtime's workloads, and sets info.Runtimes. It deletes the files of others.
func (d *Driver) list(ctx context.Context, info *api.NodeInfo) (found []wire.WorkloadEvent, err error) {
	call, cancel := context.WithTimeout(ctx, infoTimeout)
	defer cancel()
	has, err := d.opt.Runtime.Info(call)
	if err != nil {
		return nil, fmt.Errorf("get the runtime's info: %w", err)
	}
	info.Runtimes = has.Runtimes
	d.addVolumes(info, has)
	call, cancel = context.WithTimeout(ctx, listTimeout)
	defer cancel()
	all, err := d.opt.Runtime.List(call)
	if err != nil {
		return nil, fmt.Errorf("list the runtime's workloads: %w", err)
	}
	found = make([]wire.WorkloadEvent, 0, len(all))
	for _, s := range all {
		e := wire.WorkloadEvent{
			Key: s.Key, Attempt: s.Attempt, Phase: s.Phase, ExitCode: s.ExitCode, Spec: &s.Spec, Devices: s.Devices,
			ImageHealth: d.runnable(s.ImageHealth),
		}
		if s.OOM {
			e.Reason, e.Detail = outOfMemory(s.Spec.Memory)
		}
		found = append(found, e)
	}
	if d.opt.Files != nil {
		keys := make([]wire.Key, len(all))
		for i, s := range all {
			keys[i] = s.Key
		}
		if err := d.opt.Files.Sweep(keys); err != nil {
			d.opt.Log.Warn("files of earlier workloads not deleted", "err", err)
		}
	}
	d.sweepVolumes(found)
	return found, nil
}

// info returns the node's info without the runtime's part.
func (d *Driver) info() api.NodeInfo {
	info := d.opt.Info
	if d.opt.Devices != nil {
		info.Devices = d.opt.Devices()
	}
	if d.opt.Ports != nil {
		info.Ports = d.opt.Ports()
	}
	if d.opt.Volumes != nil {
		info.Volumes = d.opt.Volumes.List()
	}
	if d.opt.Network != nil {
		if err := d.opt.Network.Ready(); err != nil {
			info.NetworkError = err.Error()
		}
	}
	return info
}

// outOfMemory describes a kill by the kernel; limitMB is 0 if the limit is unknown.
func outOfMemory(limitMB int64) (api.Reason, string) {
	if limitMB > 0 {
		return api.ReasonOutOfMemory, "the kernel killed it at its memory limit of " + api.MiB(limitMB)
	}
	return api.ReasonOutOfMemory, "the kernel killed it for lack of memory"
}

// Order queues an order of the core. It does not block.
func (d *Driver) Order(order wire.WorkloadOrder) {
	k := order.Of()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	q := d.queues[k]
	idle := q == nil
	if idle {
		q = &queue{}
		d.queues[k] = q
	}
	if _, stop := order.(wire.StopWorkload); stop && q.cancel != nil {
		q.cancel()
	}
	if n := len(q.orders); n > 0 && replaces(order, q.orders[n-1]) {
		q.orders[n-1] = order
	} else {
		q.orders = append(q.orders, order)
	}
	d.moveGuard(q)
	if idle && d.ctx != nil {
		d.wg.Go(func() { d.serve(d.ctx, k, q) })
	}
}

// replaces reports whether a newer order makes an older one of its placement unnecessary.
func replaces(newer, older wire.WorkloadOrder) bool {
	switch newer.(type) {
	case wire.StopWorkload, wire.KillWorkload, wire.ReadyWorkload, wire.GuardWorkload, syncNetwork:
		return reflect.TypeOf(newer) == reflect.TypeOf(older)
	}
	return false
}

// Run carries out orders and watches the runtime until ctx ends. Workloads keep running.
func (d *Driver) Run(ctx context.Context) error {
	d.mu.Lock()
	d.ctx = ctx
	for k, q := range d.queues {
		d.wg.Go(func() { d.serve(ctx, k, q) })
	}
	d.mu.Unlock()
	defer func() {
		d.mu.Lock()
		d.closed = true
		d.mu.Unlock()
		d.wg.Wait()
	}()
	var g sync.WaitGroup
	g.Go(func() { d.reportExits(ctx) })
	g.Go(func() { d.housekeep(ctx) })
	d.watch(ctx)
	g.Wait()
	return nil
}

// serve carries out a placement's orders until none is left.
func (d *Driver) serve(ctx context.Context, k wire.Key, q *queue) {
	for {
		d.mu.Lock()
		if len(q.orders) == 0 || ctx.Err() != nil {
			delete(d.queues, k)
			d.mu.Unlock()
			return
		}
		order := q.orders[0]
		q.orders = q.orders[1:]
		switch order.(type) {
		case wire.StartWorkload, wire.StopWorkload, wire.KillWorkload:
			q.running = true
			d.moveGuard(q)
		}
		d.mu.Unlock()
		order.Deliver(execution{d, ctx, q, k})
		d.mu.Lock()
		q.running = false
		moved := q.moved
		d.mu.Unlock()
		if moved != nil {
			<-moved
		}
	}
}

// moveGuard moves the deadline of a workload during its start, stop or kill, if that is its next order.
// These may take longer than the lease, which is renewed meanwhile. d.mu is held.
func (d *Driver) moveGuard(q *queue) {
	if !q.running || len(q.orders) == 0 {
		return
	}
	to, ok := q.orders[0].(wire.GuardWorkload)
	if !ok || to.Until.IsZero() {
		return
	}
	q.orders, q.moveTo = q.orders[1:], &to
	if q.moved != nil {
		return
	}
	moved := make(chan struct{})
	q.moved = moved
	d.wg.Go(func() {
		defer close(moved)
		for {
			d.mu.Lock()
			to := q.moveTo
			if q.moveTo = nil; to == nil || d.ctx.Err() != nil {
				q.moved = nil
				d.mu.Unlock()
				return
			}
			d.mu.Unlock()
			d.guard(d.ctx, *to)
		}
	})
}
