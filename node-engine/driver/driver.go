// Package driver carries out what a node's core orders of its runtime, and tells
// the core what came of it and what happens by itself.
//
// Orders for one placement are carried out one after the other, in their order,
// but a guard is moved while a start or a stop lasts; placements do not wait for
// each other, but creations, which are heavy, for a few others. What is wanted
// belongs to the core, how to the runtime.
//
//	d := driver.New(driver.Options{Runtime: rt, Deliver: deliver, Info: info})
//	found := d.Find(ctx)                 // for node.Start
//	g.Go(func() error { return d.Run(ctx) })
//	d.Order(wire.StartWorkload{…})        // from the loop's send function
package driver

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Deadlines of the runtime's calls, so that one that hangs holds up its own
// placement only, and not for ever.
const (
	createTime = 15 * time.Minute // an image may have to be fetched over a thin link
	startTime  = time.Minute
	stopSlack  = 2 * time.Minute // beyond the grace: a runtime carries out few stops at once
	listTime   = 30 * time.Second
	infoTime   = 10 * time.Second

	// patience is how long an order lasts, beyond a stop's grace, before the runtime
	// is asked for a sign of life, and the pause before it is asked again.
	patience = 30 * time.Second
)

// Guard has workloads killed at a moment by something that outlives the engine.
type Guard interface {
	// Set kills the target at until. A later Set of the same key moves the moment.
	Set(ctx context.Context, k wire.Key, t runtime.Target, until time.Time) error
	// Lift forgets the key. Lifting what is not set succeeds.
	Lift(ctx context.Context, k wire.Key) error
}

// Options are what a driver needs.
type Options struct {
	Runtime runtime.Runtime
	// Deliver hands an input to the core and returns when it is durable. It is
	// called again until it succeeds: nothing that a runtime says may be lost.
	Deliver func(ctx context.Context, in node.Input) error
	Info    api.NodeInfo            // of the node, without what the runtime says
	Guard   Guard                   // nil: nothing outlives the engine, and leases end with it
	Network Network                 // nil: workloads have no overlay network
	Devices func() []api.NodeDevice // what Info says of devices; nil: none. Recheck when it changed
	Ports   func() *api.NodePorts   // what workloads may publish here; nil: not said. Recheck when it changed
	Creates int                     // creations at once: 4
	Log     *slog.Logger            // slog.Default

	// The pauses between looks at a runtime that does not answer: 500 ms to 10 s.
	MinPause, MaxPause time.Duration
}

var createTurns = fairshare.Declare(fairshare.Bound{
	Resource: "images to pull and workloads to create that wait at a node", Total: 1 << 16, Per: "tenant",
	Beyond: "5 at once, 4 of one tenant, and tenants take turns; the newest of the tenant with most fails and is tried again",
	Attack: "TestSlowPullsOfOneTenantLeaveRoomForOthers",
})

// Driver drives one runtime.
type Driver struct {
	opt     Options
	creates *fairshare.Turns // by tenant
	exits   chan runtime.Exit

	// calm is held for reading while an order or an exit is on its way from the
	// runtime to the core, and for writing while the core is told all that the
	// runtime has: what was listed before and arrives after would contradict.
	calm sync.RWMutex

	mu     sync.Mutex // guards the fields below
	ctx    context.Context
	closed bool
	queues map[wire.Key]*queue
	asked  time.Time     // when the runtime was asked for a sign of life last
	broken chan struct{} // signalled by Recheck: an order found the runtime down, or the network changed
	silent chan error    // of one: why a runtime that keeps its connection counts as down
	wg     sync.WaitGroup
}

// queue holds the orders for one placement that wait, and ends a creation that a
// stop overtakes.
type queue struct {
	orders []wire.WorkloadOrder
	cancel context.CancelFunc  // of the creation under way
	lasts  bool                // a start or a stop is under way: its guard is moved meanwhile
	moves  *wire.GuardWorkload // to where, newest
	moving chan struct{}       // closed when none is left; nil: nobody moves it
}

// New is a driver that carries out nothing before Run.
func New(o Options) *Driver {
	if o.Creates <= 0 {
		o.Creates = 4
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if o.MinPause <= 0 {
		o.MinPause = 500 * time.Millisecond
	}
	if o.MaxPause <= 0 {
		o.MaxPause = 10 * time.Second
	}
	return &Driver{
		opt:     o,
		creates: fairshare.NewTurns(createTurns, o.Creates+1, o.Creates), // a slow registry of one tenant leaves one
		exits:   make(chan runtime.Exit, 64),
		queues:  map[wire.Key]*queue{},
		broken:  make(chan struct{}, 1),
		silent:  make(chan error, 1),
	}
}

// Find says what the node is and which workloads its runtime has. Of a runtime
// that does not answer the error is in Info.RuntimeError and returned.
func (d *Driver) Find(ctx context.Context) (api.NodeInfo, []wire.WorkloadEvent, error) {
	info, found, _, err := d.find(ctx)
	return info, found, err
}

// find is Find, with the placements whose place on the network is not as it should be.
func (d *Driver) find(ctx context.Context) (api.NodeInfo, []wire.WorkloadEvent, []wire.Key, error) {
	info := d.info()
	ask, cancel := context.WithTimeout(ctx, infoTime)
	defer cancel()
	offer, err := d.opt.Runtime.Info(ask)
	if err != nil {
		info.RuntimeError = err.Error()
		return info, nil, nil, fmt.Errorf("ask the runtime what it offers: %w", err)
	}
	info.Runtimes = offer.Runtimes
	list, cancel2 := context.WithTimeout(ctx, listTime)
	defer cancel2()
	statuses, err := d.opt.Runtime.List(list)
	if err != nil {
		info.RuntimeError = err.Error()
		return info, nil, nil, fmt.Errorf("list the runtime's workloads: %w", err)
	}
	found := make([]wire.WorkloadEvent, 0, len(statuses))
	for _, s := range statuses {
		found = append(found, eventOf(s))
	}
	return info, found, d.compare(ctx, found), nil
}

// info is what the node is, without what the runtime says.
func (d *Driver) info() api.NodeInfo {
	info := d.opt.Info
	if d.opt.Devices != nil {
		info.Devices = d.opt.Devices()
	}
	if d.opt.Ports != nil {
		info.Ports = d.opt.Ports()
	}
	if d.opt.Network != nil {
		if err := d.opt.Network.Ready(); err != nil {
			info.NetworkError = err.Error()
		}
	}
	return info
}

func eventOf(s runtime.Status) wire.WorkloadEvent {
	e := wire.WorkloadEvent{Key: s.Key, Attempt: s.Attempt, Phase: s.Phase, ExitCode: s.ExitCode, Spec: &s.Spec, Devices: s.Devices}
	if s.OOM {
		e.Reason, e.Detail = oom(s.Spec.Memory)
	}
	return e
}

func oom(limit int64) (api.Reason, string) {
	if limit > 0 {
		return api.ReasonOutOfMemory, fmt.Sprintf("the kernel killed it at its memory limit of %d MiB", limit)
	}
	return api.ReasonOutOfMemory, "the kernel killed it for want of memory"
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
		q.cancel() // ends a creation that is under way
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

// replaces reports whether a newer order makes an older one of its placement needless.
func replaces(newer, older wire.WorkloadOrder) bool {
	switch newer.(type) {
	case wire.StopWorkload, wire.GuardWorkload, settle:
		return reflect.TypeOf(newer) == reflect.TypeOf(older)
	}
	return false
}

// Run carries out orders and watches the runtime until ctx ends. Workloads
// live on.
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
	g.Go(func() { d.tellExits(ctx) })
	g.Go(func() { d.housekeep(ctx) })
	d.watch(ctx)
	g.Wait()
	return nil
}

// serve carries out one placement's orders until none is left.
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
		case wire.StartWorkload, wire.StopWorkload:
			q.lasts = true
			d.moveGuard(q)
		}
		d.mu.Unlock()
		order.Deliver(execution{d, ctx, q, k})
		d.mu.Lock()
		q.lasts = false
		moving := q.moving
		d.mu.Unlock()
		if moving != nil {
			<-moving
		}
	}
}

// moveGuard moves the deadline, if that is what is ordered next, of a workload whose
// start or stop is under way: that may last longer than the lease, which is renewed
// meanwhile. d.mu is held.
func (d *Driver) moveGuard(q *queue) {
	if !q.lasts || len(q.orders) == 0 {
		return
	}
	to, ok := q.orders[0].(wire.GuardWorkload)
	if !ok || to.Until.IsZero() {
		return
	}
	q.orders, q.moves = q.orders[1:], &to
	if q.moving != nil {
		return
	}
	moving := make(chan struct{})
	q.moving = moving
	d.wg.Go(func() {
		defer close(moving)
		for {
			d.mu.Lock()
			to := q.moves
			if q.moves = nil; to == nil || d.ctx.Err() != nil {
				q.moving = nil
				d.mu.Unlock()
				return
			}
			d.mu.Unlock()
			d.guard(d.ctx, *to)
		}
	})
}

// execution carries out one order of a placement.
type execution struct {
	*Driver
	ctx context.Context
	q   *queue
	key wire.Key
}

// Create implements wire.WorkloadOrderHandler, as do the methods below.
func (x execution) Create(o wire.CreateWorkload) { x.create(x.ctx, x.q, o) }

// Start attaches the workload to the network and starts it.
func (x execution) Start(o wire.StartWorkload) {
	defer x.expect(x.ctx, patience)()
	x.calm.RLock()
	defer x.calm.RUnlock()
	call, cancel := context.WithTimeout(x.ctx, startTime)
	defer cancel()
	at, err := x.attach(call, x.key)
	if err == nil {
		err = x.opt.Runtime.Start(call, x.key)
	}
	x.result(x.ctx, wire.WorkloadEvent{Key: x.key, Attempt: o.Attempt, Phase: wire.WorkloadRunning, Address: at.Address, Ready: at.Ready}, err)
}

// Stop stops the workload and detaches it from the network.
func (x execution) Stop(o wire.StopWorkload) {
	defer x.expect(x.ctx, o.Grace+patience)()
	call, cancel := context.WithTimeout(x.ctx, o.Grace+stopSlack)
	x.drain(call, o)
	err := x.opt.Runtime.Stop(call, x.key, o.Grace)
	if err == nil {
		x.detach(call, x.key)
	}
	cancel()
	x.calm.RLock()
	defer x.calm.RUnlock()
	x.result(x.ctx, wire.WorkloadEvent{Key: x.key, Phase: wire.WorkloadGone}, err)
}

// Detach detaches the workload from the network.
func (x execution) Detach(wire.DetachWorkload) {
	if x.detach(x.ctx, x.key) != nil { // the next comparison finds it, and the core repeats the order
		time.AfterFunc(x.opt.MaxPause, x.Recheck)
	}
}

// Guard sets or lifts the deadline of the workload.
func (x execution) Guard(o wire.GuardWorkload) { x.guard(x.ctx, o) }

// expect asks the runtime for a sign of life when an order takes longer than within, and
// again every patience until the returned function is called. It finds a runtime that
// hangs with its connection open before the order's deadline.
func (d *Driver) expect(ctx context.Context, within time.Duration) (done func()) {
	ended := make(chan struct{})
	d.wg.Go(func() {
		for timer := time.NewTimer(within); ; timer.Reset(patience) {
			select {
			case <-timer.C:
				d.inquire(ctx)
			case <-ended:
				timer.Stop()
				return
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	})
	return func() { close(ended) }
}

// inquire asks the runtime for its version, at most once per patience for all orders. If
// the runtime does not answer, it ends the watch.
func (d *Driver) inquire(ctx context.Context) {
	d.mu.Lock()
	now := time.Now()
	if !d.asked.IsZero() && now.Sub(d.asked) < patience {
		d.mu.Unlock()
		return
	}
	d.asked = now
	d.mu.Unlock()
	ask, cancel := context.WithTimeout(ctx, infoTime)
	defer cancel()
	if _, err := d.opt.Runtime.Info(ask); err != nil && ctx.Err() == nil {
		select {
		case d.silent <- fmt.Errorf("ask the runtime for a sign of life: %w", err):
		default:
		}
	}
}

// create creates a workload when it is its tenant's turn. A stop that is ordered
// meanwhile ends the wait and the creation. The calm is held only while the result is
// delivered: to the core, a listed placement that is still being created is no
// contradiction.
func (d *Driver) create(ctx context.Context, q *queue, o wire.CreateWorkload) {
	call, cancel := context.WithCancel(ctx)
	defer cancel()
	d.mu.Lock()
	for _, next := range q.orders {
		if _, stop := next.(wire.StopWorkload); stop {
			d.mu.Unlock()
			return
		}
	}
	q.cancel = cancel
	d.mu.Unlock()
	err := d.createInTurn(call, o)
	d.mu.Lock()
	q.cancel = nil
	d.mu.Unlock()
	if err != nil && call.Err() != nil && ctx.Err() == nil {
		return // the stop that ended it reports the result
	}
	d.calm.RLock()
	defer d.calm.RUnlock()
	d.result(ctx, wire.WorkloadEvent{Key: o.Key, Attempt: o.Attempt, Phase: wire.WorkloadCreated}, err)
}

// createInTurn waits for the tenant's turn, and then creates the workload within
// createTime.
func (d *Driver) createInTurn(ctx context.Context, o wire.CreateWorkload) error {
	leave, err := d.creates.Enter(ctx, time.Now(), []string{string(o.Instance.Tenant().Top())}, false)
	if err != nil {
		return err
	}
	defer leave()
	defer d.expect(ctx, patience)()
	if err := d.hasNetworkFor(o.Spec); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, createTime)
	defer cancel()
	return d.opt.Runtime.Create(ctx, runtime.Workload{Key: o.Key, Attempt: o.Attempt, Spec: o.Spec, Addresses: o.Addresses, Devices: o.Devices})
}

func (d *Driver) guard(ctx context.Context, o wire.GuardWorkload) {
	if err := d.setGuard(ctx, o); err != nil {
		d.opt.Log.Warn("workload is not guarded: only this engine ends it when its lease does", "instance", o.Instance, "epoch", o.Epoch, "err", err)
	}
}

func (d *Driver) setGuard(ctx context.Context, o wire.GuardWorkload) error {
	if d.opt.Guard == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, startTime)
	defer cancel()
	if o.Until.IsZero() {
		return d.opt.Guard.Lift(ctx, o.Key)
	}
	g, ok := d.opt.Runtime.(runtime.Guarded)
	if !ok {
		return fmt.Errorf("the runtime cannot name what would have to be killed: %w", api.ErrUnavailable)
	}
	t, err := g.CgroupOf(ctx, o.Key)
	if err != nil {
		return err
	}
	return d.opt.Guard.Set(ctx, o.Key, t, o.Until)
}

// result tells the core what came of an order: e, or why it failed.
func (d *Driver) result(ctx context.Context, e wire.WorkloadEvent, err error) {
	if err != nil {
		if ctx.Err() != nil {
			return // we are ending, not the workload
		}
		wanted := e.Phase
		e.Phase, e.Reason, e.Detail = wire.WorkloadFailed, runtime.Reason(err), runtime.Detail(err)
		d.opt.Log.Warn("the runtime did not carry out an order", "instance", e.Instance, "epoch", e.Epoch, "wanted", wanted, "reason", e.Reason, "err", err)
		if e.Reason == api.ReasonRuntimeDown || errors.Is(err, api.ErrConflict) {
			d.Recheck() // what the runtime has is not what the core believes
		}
	}
	d.deliver(ctx, node.Workload{WorkloadEvent: e})
}

// Recheck has the core told anew what there is, soon: the runtime or the network
// came or went.
func (d *Driver) Recheck() {
	select {
	case d.broken <- struct{}{}:
	default:
	}
}

// deliver hands an input over, however often that has to be tried: the core
// waits for it, and nobody repeats it.
func (d *Driver) deliver(ctx context.Context, in node.Input) {
	for pause := d.opt.MinPause; ; pause = min(2*pause, d.opt.MaxPause) {
		if err := d.opt.Deliver(ctx, in); err == nil || ctx.Err() != nil {
			return
		}
		if !sleep(ctx, pause) {
			return
		}
	}
}

func (d *Driver) tellExits(ctx context.Context) {
	for {
		select {
		case x := <-d.exits:
			e := wire.WorkloadEvent{Key: x.Key, Attempt: x.Attempt, Phase: wire.WorkloadExited, ExitCode: x.ExitCode}
			if x.OOM {
				e.Reason, e.Detail = oom(0)
			}
			d.calm.RLock()
			d.deliver(ctx, node.Workload{WorkloadEvent: e})
			d.calm.RUnlock()
			if d.namespaced() != nil {
				d.Order(avoid{x.Key})
			}
		case <-ctx.Done():
			return
		}
	}
}

// watch holds the runtime's watch, tells the core when the runtime falls silent,
// and all that it has when it is back.
func (d *Driver) watch(ctx context.Context) {
	pause := d.opt.MinPause
	for ctx.Err() == nil {
		began := time.Now()
		err := d.watchOnce(ctx)
		if ctx.Err() != nil {
			return
		}
		if time.Since(began) > d.opt.MaxPause {
			pause = d.opt.MinPause
		}
		d.opt.Log.Error("the runtime does not answer", "err", err)
		info := d.info()
		info.RuntimeError = err.Error()
		d.deliver(ctx, node.Info{Info: info})
		if !sleep(ctx, pause) {
			return
		}
		pause = min(2*pause, d.opt.MaxPause)
	}
}

// watchOnce watches until the runtime ends the watch or an order finds it down.
func (d *Driver) watchOnce(parent context.Context) error {
	ctx, cancel := context.WithCancel(parent)
	defer cancel()
	select {
	case <-d.silent: // from before this watch
	default:
	}
	ended := make(chan error, 1)
	go func() { ended <- d.opt.Runtime.Watch(ctx, d.exits) }()
	// What exited before the watch began is in the list, what exits later is told
	// by the watch; what both say is told twice, which is harmless.
	if err := d.tellAll(ctx); err != nil {
		cancel()
		<-ended
		return err
	}
	for {
		select {
		case err := <-ended:
			if err == nil {
				err = fmt.Errorf("the watch ended: %w", api.ErrUnavailable)
			}
			return err
		case err := <-d.silent:
			cancel()
			<-ended
			return err
		case <-d.broken:
			// Many orders that fail together cause one listing of a busy runtime, not one each.
			if !sleep(ctx, d.opt.MinPause) {
				continue
			}
			select {
			case <-d.broken:
			default:
			}
			if err := d.tellAll(ctx); err != nil {
				cancel()
				<-ended
				return err
			}
		}
	}
}

// tellAll tells the core what the runtime offers and has.
func (d *Driver) tellAll(ctx context.Context) error {
	d.calm.Lock()
	defer d.calm.Unlock()
	info, found, unsettled, err := d.find(ctx)
	if err != nil {
		return err
	}
	d.deliver(ctx, node.Info{Info: info, Found: found, Fresh: true})
	for _, k := range unsettled {
		d.Order(settle{k})
	}
	return nil
}

// housekeepEvery is how often a runtime may tidy, and is asked for a sign of life
// while nothing is ordered.
const housekeepEvery = 15 * time.Minute

func (d *Driver) housekeep(ctx context.Context) {
	h, ok := d.opt.Runtime.(runtime.Housekeeper)
	if !ok {
		return
	}
	for sleep(ctx, housekeepEvery) {
		d.inquire(ctx) // without orders, nothing else detects that the runtime hangs
		if err := h.Housekeep(ctx); err != nil && ctx.Err() == nil {
			d.opt.Log.Warn("runtime housekeeping failed", "err", err)
		}
	}
}

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
