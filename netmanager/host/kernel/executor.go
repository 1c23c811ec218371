// Package kernel applies the overlay core's orders to the kernel: devices and routes by package
// link, and a data plane, eBPF or nftables.
package kernel

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/peermsg"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// The pauses between attempts to sync the kernel.
const (
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// Core is the overlay core as the executor uses it.
type Core interface {
	// Plane returns the state that the kernel should have.
	Plane(context.Context) (plane.State, error)
	// Post queues an input for the core. It does not block.
	Post(overlay.Input)
}

// Options are what an executor uses. Except for Open and the core's Plane, the methods and functions
// must not block.
type Options struct {
	Core    Core
	Open    func() (dataplane.Plane, error)
	Devices *Devices
	Packets interface { // the packet queue
		Release(remote netip.Addr)
		Hold(remote netip.Addr, d time.Duration)
		Refuse(local, remote netip.Addr, denied bool)
	}
	Names interface{ Answered(name string) } // the resolver
	Peers interface {                        // the path manager
		Send(k api.PeerKey, m peermsg.Message, connect bool)
	}
	// Used receives the data plane's counters, when the core requests them.
	Used func(plane.Usage)
	// Synced receives the error while the kernel is not in sync with the core; nil: it is in sync.
	Synced func(error)
	Log    *slog.Logger
}

// Executor carries out the core's orders in sequence, so that a queued packet is released only when
// the data plane has its route. If the kernel rejects an order, the executor syncs the whole state
// until the kernel accepts it.
type Executor struct {
	Options

	// Only Run uses the fields below.
	plane     dataplane.Plane
	endpoints map[netip.Addr]plane.Endpoint // that the core wants
	leased    bool                          // the kernel was synced with a lease

	mu     sync.Mutex // guards queue
	queue  []any
	filled chan struct{}
}

// NewExecutor returns an executor that queues orders, and carries them out in Run.
func NewExecutor(o Options) *Executor {
	return &Executor{Options: o, endpoints: map[netip.Addr]plane.Endpoint{}, filled: make(chan struct{}, 1)}
}

type (
	// barrier is closed when the orders before it are carried out.
	barrier chan struct{}
	// resync syncs the whole state.
	resync struct{}
	// connect creates an instance's device, and answers once.
	connect struct {
		address netip.Addr
		done    chan error
	}
)

// maxOrders bounds the orders that wait while the kernel rejects changes.
const maxOrders = 8192

// compact replaces the orders by one sync of the whole state, followed by each request for counters
// once and the callers that wait. It drops orders about queued packets, which have waited too long,
// and messages to peers, which are repeated.
func compact(queue []any) []any {
	out := []any{resync{}}
	requested := map[any]bool{}
	for _, m := range queue {
		switch m.(type) {
		case connect, barrier:
			out = append(out, m)
		case overlay.Ask, overlay.Count:
			if !requested[m] {
				requested[m] = true
				out = append(out, m)
			}
		}
	}
	return out
}

// Order queues an order of the core. It does not block.
func (x *Executor) Order(m any) {
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.queue = append(x.queue, m); len(x.queue) >= maxOrders {
		x.queue = compact(x.queue)
	}
	select {
	case x.filled <- struct{}{}:
	default:
	}
}

// Resync queues a sync of the whole state, after a change of the machine's networks, on which the
// closed networks depend.
func (x *Executor) Resync() { x.Order(resync{}) }

// Wait returns when all orders before it are carried out, or ctx ends.
func (x *Executor) Wait(ctx context.Context) error {
	b := make(barrier)
	x.Order(b)
	select {
	case <-b:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Connect creates the device of an instance that Devices.Want named.
func (x *Executor) Connect(ctx context.Context, a netip.Addr) error {
	c := connect{a, make(chan error, 1)}
	x.Order(c)
	select {
	case err := <-c.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("wait for the kernel: %w: %w", api.ErrTimeout, ctx.Err())
	}
}

// Run opens the data plane, syncs it, and carries out orders until ctx ends.
func (x *Executor) Run(ctx context.Context) error {
	p, err := x.Open()
	if err != nil {
		return err
	}
	defer p.Close()
	x.plane = p
	x.sync(ctx, nil)
	for {
		select {
		case <-x.filled:
		case <-ctx.Done():
			return nil
		}
		x.mu.Lock()
		all := x.queue
		x.queue = nil
		x.mu.Unlock()
		for _, m := range all {
			if x.carryOut(ctx, m); ctx.Err() != nil {
				return nil
			}
		}
	}
}

func (x *Executor) carryOut(ctx context.Context, m any) {
	switch m := m.(type) {
	case plane.Change:
		var err error
		switch {
		case x.leased:
			if err = x.change(ctx, m); err == nil {
				return
			}
		case m.Node == nil || !m.Node.Subnet.IsValid():
			return
		}
		x.sync(ctx, err)
	case overlay.Ask:
		u, err := x.plane.Usage(ctx)
		if err != nil {
			x.Log.Warn("read usage of the data plane failed", "err", err)
			return
		}
		x.Used(u)
		x.Core.Post(overlay.Used{Usage: u})
	case overlay.Release:
		x.Packets.Release(m.Remote)
	case overlay.Hold:
		x.Packets.Hold(m.Remote, m.For)
	case overlay.Refuse:
		x.Packets.Refuse(m.Local, m.Remote, m.Denied)
	case overlay.Answered:
		x.Names.Answered(m.Name)
	case overlay.Count:
		n, err := x.plane.Traffic(ctx)
		if err != nil {
			x.Log.Warn("read traffic of kernel paths failed", "err", err)
		}
		x.Core.Post(overlay.Counted{Peers: n})
	case overlay.TunnelTerms:
		x.Peers.Send(m.Key, m.Terms, true)
	case overlay.TunnelNoticeAck:
		x.Peers.Send(m.Key, peermsg.NoticeAck{Serial: m.Serial}, true)
	case barrier:
		close(m)
	case resync:
		x.sync(ctx, nil)
	case connect:
		m.done <- x.connect(ctx, m.address)
	}
}

// connect creates an instance's device, and adds a new one to the data plane.
func (x *Executor) connect(ctx context.Context, a netip.Addr) error {
	created, err := x.Devices.connect(a)
	e, ok := x.endpoints[a]
	if err != nil || !ok || !created {
		return err
	}
	if err := x.plane.Apply(ctx, plane.Change{SetEndpoints: []plane.Endpoint{e}}); err != nil {
		x.sync(ctx, err)
	}
	return nil
}

// change creates devices before it adds them to the data plane, and deletes them after it
// has removed them from there.
func (x *Executor) change(ctx context.Context, c plane.Change) error {
	for _, a := range c.DropEndpoints {
		delete(x.endpoints, a)
	}
	for _, e := range c.SetEndpoints {
		x.endpoints[e.Address] = e
	}
	c, err := x.Devices.prepare(c)
	if err != nil {
		return err
	}
	if err := x.plane.Apply(ctx, c); err != nil {
		return err
	}
	return x.Devices.tidy(c)
}

// sync applies the whole state to the kernel until the kernel accepts it. cause is the error that
// made this necessary; nil means that nothing failed.
func (x *Executor) sync(ctx context.Context, cause error) {
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		if cause != nil {
			x.Synced(cause)
			x.Log.Warn("kernel out of sync, syncing again", "err", cause, "retry_in", pause)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return
			}
		}
		s, err := x.Core.Plane(ctx)
		if ctx.Err() != nil {
			return
		}
		if x.leased = s.Node.Subnet.IsValid(); err == nil && !x.leased {
			x.Synced(nil) // without a lease, the state of an earlier start stays
			return
		}
		if err == nil {
			clear(x.endpoints)
			for _, e := range s.Endpoints {
				x.endpoints[e.Address] = e
			}
			s, err = x.Devices.sync(s)
		}
		if err == nil {
			err = x.plane.Sync(ctx, s)
		}
		if cause = err; cause == nil {
			x.Synced(nil)
			return
		}
	}
}
