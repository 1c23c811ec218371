// Package host connects the overlay core to the machine: to the node engine's socket, the
// tunnel, the relay, the resolver and the metrics. Package kernel below it carries out the core's
// orders in the kernel, workloads watches the attached workloads, machine finds the machine's
// addresses, and credentials reads the node's certificate. These packages make no decisions about
// the network.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/loop"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Core gives adapters access to the overlay core, which the loop in it owns. Its methods
// are safe for concurrent use.
//
// While the store accepts no writes, the core still handles inputs whose result may be lost at a
// restart, because their senders repeat them: the cluster, peers and the kernel. New flows therefore
// begin on a full disk too.
type Core struct {
	view overlay.View // used on the loop's goroutine only
	loop *loop.Loop[overlay.Input]
	log  *slog.Logger
	send func([]wire.Envelope) // set by Run, called on the loop's goroutine

	mu sync.Mutex // guards kept, and the order of posted inputs
	// kept has the newest of each input that is not repeated, while the loop accepts none.
	kept map[any]overlay.Input
}

// NewCore returns the core with its loop, which Run starts. It calls observe on the loop's
// goroutine after each batch of inputs; leased is whether the core has a lease.
func NewCore(core *overlay.Core, st store.Store, log *slog.Logger, observe func(s loop.Sample, leased bool)) *Core {
	return newCore(core.View(), core, st, log, observe)
}

// newCore is NewCore with another core to step, for tests.
func newCore(view overlay.View, stepped step.Core[overlay.Input], st store.Store, log *slog.Logger, observe func(loop.Sample, bool)) *Core {
	c := &Core{view: view, log: log, kept: map[any]overlay.Input{}}
	c.loop = loop.New(stepped, st, func(all []wire.Envelope) { c.send(all) }, loop.Options[overlay.Input]{
		Tick: overlay.Tick{}, Log: log, Queue: 4096, Batch: 256, WhenFull: needsNoSave,
		Observe: func(s loop.Sample) {
			c.repost()
			_, leased := view.Lease()
			observe(s, leased)
		},
	})
	return c
}

// Run steps the core until ctx ends, and passes its messages to send, which must not block.
func (c *Core) Run(ctx context.Context, send func([]wire.Envelope)) error {
	c.send = send
	return c.loop.Run(ctx)
}

// unsavedPause delays a start whose boot number could not be saved. That number is the time in
// seconds, so the pause makes sure that the next start has another.
const unsavedPause = 1100 * time.Millisecond

// Start steps the core with overlay.Start. It succeeds on a full disk too, because the workloads'
// tunnels depend on it.
func (c *Core) Start(ctx context.Context) error {
	err := c.loop.Do(ctx, overlay.Start{}, nil)
	if !unsaved(err) {
		return err
	}
	c.log.Warn("start number not saved", "err", err)
	select {
	case <-time.After(unsavedPause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Do steps the core with an input; see loop.Loop.Do.
func (c *Core) Do(ctx context.Context, in overlay.Input, after func(overlay.View)) error {
	return c.loop.Do(ctx, in, func() {
		if after != nil {
			after(c.view)
		}
	})
}

// Read runs fn with a view of the core on the loop's goroutine; see loop.Loop.Read.
func (c *Core) Read(ctx context.Context, fn func(overlay.View)) error {
	return c.loop.Read(ctx, func() { fn(c.view) })
}

// Plane returns the state that the kernel should have.
func (c *Core) Plane(ctx context.Context) (s plane.State, err error) {
	err = c.Read(ctx, func(o overlay.View) { s = o.Plane() })
	return s, err
}

// Attachments returns the attached workloads.
func (c *Core) Attachments(ctx context.Context) (all []wire.Attach, err error) {
	err = c.Read(ctx, func(o overlay.View) { all = o.Attachments() })
	return all, err
}

// needsNoSave reports whether an input may be stepped while the store accepts no writes: every
// input except those whose answer promises that the result is durable.
func needsNoSave(in overlay.Input) bool {
	switch in.(type) {
	case overlay.Start, overlay.Attach, overlay.Detach:
		return false
	}
	return true
}

// keepAs returns the key under which an input is kept while the loop accepts none; a later input
// replaces an earlier one of the same key. Nil means that the input is not kept, because its source
// repeats it: packets, queries, handshakes and measurements.
func keepAs(in overlay.Input) any {
	switch in := in.(type) {
	case overlay.Link:
		return "link"
	case overlay.Self:
		return "self"
	case overlay.Path:
		return in.Key
	case overlay.Ready, overlay.Exited:
		return in
	case overlay.SetReady:
		return setReadyOf{in.Key}
	}
	return nil
}

// setReadyOf is the key of kept SetReady inputs: the newest of a workload counts.
type setReadyOf struct{ wire.Key }

// Post queues an input for the core. It does not block.
func (c *Core) Post(in overlay.Input) { c.Offer(in) }

// Offer is Post, and reports whether the core steps the input now or later.
func (c *Core) Offer(in overlay.Input) bool {
	key := keepAs(in)
	if key == nil {
		return c.loop.Offer(in)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.repostLocked() || !c.loop.Offer(in) {
		c.kept[key] = in
	}
	return true
}

// repost posts the kept inputs, and reports whether none is left.
func (c *Core) repost() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.repostLocked()
}

func (c *Core) repostLocked() bool {
	for key, in := range c.kept {
		if !c.loop.Offer(in) {
			return false
		}
		delete(c.kept, key)
	}
	return true
}

// Learn steps the core with an input for which needsNoSave is true. It returns when the core has
// stepped it.
func (c *Core) Learn(ctx context.Context, in overlay.Input) error {
	err := c.loop.Do(ctx, in, nil)
	if unsaved(err) && c.Offer(in) { // it may be stepped twice, which is harmless
		err = c.loop.Read(ctx, func() {})
	}
	return err
}

// LearnInOrder is Learn after all kept inputs. It fails while the loop accepts none.
func (c *Core) LearnInOrder(ctx context.Context, in overlay.Input) error {
	if !c.repost() {
		return cmp.Or(c.loop.Stalled(), fmt.Errorf("the core accepts no inputs: %w", api.ErrUnavailable))
	}
	return c.Learn(ctx, in)
}

// unsaved reports whether an input failed because the store accepts no writes.
func unsaved(err error) bool {
	return errors.Is(err, api.ErrFull) || errors.Is(err, api.ErrUnavailable)
}
