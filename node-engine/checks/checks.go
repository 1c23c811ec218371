// Package checks carries out the health checks of the workloads on a node. The machines of package
// node-engine/node/health decide when a check is due and what its result means; this package connects,
// waits, and delivers their verdicts to the node's core.
//
// A check connects from within the workload's network namespace to the workload's own address, so that
// an SLA cannot make the node connect to anything that the workload itself could not reach. What a
// workload answers is bounded. While no check runs there is one timer for all, and none without checks.
//
//	c := checks.New(checks.Options{Runtime: rt, Deliver: deliver})
//	g.Go(func() error { return c.Run(ctx) })
//	c.Check(node.Check{…})       // from the loop's send function
package checks

import (
	"cmp"
	"container/heap"
	"context"
	"hash/fnv"
	"log/slog"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/fairshare"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/inside"
	"github.com/treeline-edge/treeline/node-engine/node"
	"github.com/treeline-edge/treeline/node-engine/node/health"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Options are the options of Checks.
type Options struct {
	// Runtime is asked for network namespaces (runtime.Namespaced) and to run commands
	// (runtime.Executor). Without the former, workloads share the host's network.
	Runtime runtime.Runtime
	// HostNetwork says that workloads without an address of their own share the host's network.
	HostNetwork bool
	// Deliver passes an input to the core and returns when it is saved. It is repeated until it
	// succeeds.
	Deliver func(ctx context.Context, in node.Input) error
	Log     *slog.Logger // default slog.Default
}

// Checks at the same time. One that waits for a workload's answer costs memory only; a command costs
// processor time.
const (
	atOnce         = 256
	atOnceOfTenant = 192
	commands       = 4
	commandsOf     = 3
)

var (
	turnsBound = fairshare.Declare(fairshare.Bound{
		Resource: "health checks that wait at a node", Total: 1 << 12, Per: "tenant",
		Beyond: "256 at once, 192 of one tenant, and tenants take turns; a check that finds no place is left out",
		Attack: "TestHangingChecksOfOneTenantLeaveRoomForOthers",
	})
	commandsBound = fairshare.Declare(fairshare.Bound{
		Resource: "health checks by command that wait at a node", Total: 1 << 12, Per: "tenant",
		Beyond: "4 at once, 3 of one tenant, and tenants take turns; a check that finds no place is left out",
		Attack: "TestHangingCommandsOfOneTenantLeaveRoomForOthers",
	})
)

const (
	// resolution is the least time between two rounds of due checks, so that many checks do not cause
	// one wake-up of the process each.
	resolution = 10 * time.Millisecond

	minPause, maxPause = 500 * time.Millisecond, 10 * time.Second // between deliveries of a verdict
)

// Checks carries out health checks. Its methods are safe for concurrent use.
type Checks struct {
	opt      Options
	turns    *fairshare.Turns
	commands *fairshare.Turns
	sockets  *inside.Sockets
	changed  chan struct{} // the first due time may be earlier than Run expects

	ctx    context.Context // ends with Run
	cancel context.CancelFunc

	mu      sync.Mutex // guards the fields below, and those of targets unless they say otherwise
	closed  bool
	targets map[wire.Key]*target
	due     queue
	wake    time.Time // when Run wakes; zero: not before changed
	wg      sync.WaitGroup
}

// target is an attempt with health checks.
type target struct {
	node.Check                 // constant
	ctx        context.Context // constant; ends with its checks
	end        context.CancelFunc
	place      place // where it is reached; has its own lock

	machine *health.Machine
	next    time.Time
	index   int // in the queue, -1: not in it

	verdict   health.Verdict
	delivered health.Verdict
	delivers  bool                    // a goroutine delivers its verdicts
	kept      map[api.CheckKind]*kept // connections for the next checks; nil: its checks have ended
}

// New returns Checks, which carry out nothing before Run.
func New(o Options) *Checks {
	o.Log = cmp.Or(o.Log, slog.Default())
	c := &Checks{
		opt:      o,
		turns:    fairshare.NewTurns(turnsBound, atOnce, atOnceOfTenant),
		commands: fairshare.NewTurns(commandsBound, commands, commandsOf),
		sockets:  inside.NewSockets(),
		changed:  make(chan struct{}, 1),
		targets:  map[wire.Key]*target{},
	}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

// Check begins the checks of an attempt. It replaces those of another attempt of the same placement.
// Those of the same attempt go on with the new address. It does not block.
func (c *Checks) Check(o node.Check) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	known := o.Known
	if old := c.targets[o.Key]; old != nil {
		if old.Attempt == o.Attempt {
			known = health.Known{Started: old.verdict.Started, Ready: old.verdict.Ready}
		}
		c.remove(old)
	}
	t := &target{Check: o, machine: health.New(o.Health, time.Now(), seedOf(o.Key), known), index: -1, kept: map[api.CheckKind]*kept{}}
	t.ctx, t.end = context.WithCancel(c.ctx)
	t.verdict = t.machine.Verdict()
	t.delivered = t.verdict
	c.targets[o.Key] = t
	c.schedule(t)
	if known != o.Known { // the core did not get the last verdict
		t.delivered = health.Verdict{}
		c.deliverSoon(t)
	}
}

// seedOf returns a number that differs between instances.
func seedOf(k wire.Key) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.String()))
	return h.Sum64()
}

// Uncheck ends the checks of a placement. It does not block.
func (c *Checks) Uncheck(k wire.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t := c.targets[k]; t != nil && !c.closed {
		c.remove(t)
	}
}

// remove ends the checks of a target. c.mu is held.
func (c *Checks) remove(t *target) {
	delete(c.targets, t.Key)
	if t.index >= 0 {
		heap.Remove(&c.due, t.index)
	}
	t.end()
	for _, k := range t.kept {
		_ = k.Close()
	}
	t.kept = nil
	c.wg.Go(t.place.close) // it waits for a dial
}

// schedule moves the target to its place in the queue, and wakes Run if necessary. c.mu is held.
func (c *Checks) schedule(t *target) {
	t.next = t.machine.Next()
	switch {
	case t.next.IsZero() && t.index >= 0:
		heap.Remove(&c.due, t.index)
	case t.next.IsZero():
	case t.index >= 0:
		heap.Fix(&c.due, t.index)
	default:
		heap.Push(&c.due, t)
	}
	if !t.next.IsZero() && (c.wake.IsZero() || t.next.Before(c.wake)) {
		select {
		case c.changed <- struct{}{}:
		default:
		}
	}
}

// Run carries out the checks that are due until ctx ends. It is called once.
func (c *Checks) Run(ctx context.Context) error {
	defer func() {
		c.cancel()
		c.mu.Lock()
		c.closed = true
		for _, t := range c.targets {
			c.remove(t)
		}
		c.mu.Unlock()
		c.wg.Wait()
		c.sockets.Close()
	}()
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	timer.Stop()
	for last := (time.Time{}); ; {
		next := c.begin(time.Now())
		if !next.IsZero() {
			if least := last.Add(resolution); next.Before(least) {
				next = least
			}
			timer.Reset(time.Until(next))
		}
		select {
		case <-timer.C:
		case <-c.changed:
			timer.Stop()
		case <-ctx.Done():
			return nil
		}
		last = time.Now()
	}
}

// begin starts the checks that are due, and returns when the next one is; zero: there is none.
func (c *Checks) begin(now time.Time) time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = now
	var probes []probe
	for len(c.due) > 0 && !c.due[0].next.After(now) {
		t := c.due[0]
		for kind, ok := t.machine.Due(now); ok; kind, ok = t.machine.Due(now) {
			check := t.machine.Check(kind)
			if check.TCP != nil {
				probes = append(probes, probe{t: t, kind: kind, check: check})
				continue
			}
			c.wg.Go(func() { c.run(t, kind, check) })
		}
		c.schedule(t)
	}
	if len(probes) > 0 {
		c.wg.Go(func() { c.probe(probes) })
	}
	if c.wake = (time.Time{}); len(c.due) > 0 {
		c.wake = c.due[0].next
	}
	return c.wake
}

// run carries out a check in its turn.
func (c *Checks) run(t *target, kind api.CheckKind, check api.Check) {
	turns := c.turns
	if len(check.Command) > 0 {
		turns = c.commands
	}
	res := health.Result{Unknown: true}
	leave, err := turns.Enter(t.ctx, time.Now(), []string{string(t.Instance.Tenant().Top()), string(t.Instance)}, false)
	if err == nil {
		res = c.carryOut(t, kind, check)
		leave()
	}
	if res.Unknown && res.Text != "" {
		c.opt.Log.Debug("health check not carried out", "instance", t.Instance, "check", kind, "err", res.Text)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.finish(t, kind, res)
}

// finish handles the result of a check. c.mu is held.
func (c *Checks) finish(t *target, kind api.CheckKind, res health.Result) {
	if c.targets[t.Key] != t {
		return // its checks have ended
	}
	verdict, changed := t.machine.Result(time.Now(), kind, res)
	c.schedule(t)
	if !changed {
		return
	}
	t.verdict = verdict
	c.deliverSoon(t)
}

// deliverSoon delivers the verdict of a target. c.mu is held.
func (c *Checks) deliverSoon(t *target) {
	if !t.delivers {
		t.delivers = true
		c.wg.Go(func() { c.deliver(t) })
	}
}

// deliver delivers the newest verdict of a target until none is left.
func (c *Checks) deliver(t *target) {
	pause := minPause
	for {
		c.mu.Lock()
		v := t.verdict
		if v == t.delivered || t.ctx.Err() != nil {
			t.delivers = false
			c.mu.Unlock()
			return
		}
		c.mu.Unlock()
		if c.opt.Deliver(t.ctx, node.Health{Key: t.Key, Attempt: t.Attempt, Verdict: v}) != nil {
			select {
			case <-time.After(pause):
				pause = min(2*pause, maxPause)
			case <-t.ctx.Done():
			}
			continue
		}
		pause = minPause
		c.mu.Lock()
		t.delivered = v
		c.mu.Unlock()
	}
}

// queue is a heap of targets by their next due times.
type queue []*target

func (q queue) Len() int           { return len(q) }
func (q queue) Less(i, j int) bool { return q[i].next.Before(q[j].next) }
func (q queue) Swap(i, j int) {
	q[i], q[j] = q[j], q[i]
	q[i].index, q[j].index = i, j
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	t := x.(*target)
	t.index = len(*q)
	*q = append(*q, t)
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	last := len(*q) - 1
	t := (*q)[last]
	*q = (*q)[:last]
	t.index = -1
	return t
}
