// Package loop runs a core: one goroutine owns it, steps it with inputs, makes its saves durable,
// and then sends its messages. Inputs that wait in the queue are stepped as one batch and saved in
// one write.
//
//	l := loop.New(core, store, send, loop.Options[node.Input]{Tick: node.Tick{}})
//	g.Go(func() error { return l.Run(ctx) })
//	l.Post(node.Desired{Desired: d})                          // may be dropped
//	err := l.Do(ctx, cluster.Drain{Node: n}, nil)             // durable when it returns nil
//	err = l.Read(ctx, func() { nodes = core.Nodes() })        // on the owner's goroutine
package loop

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Options configures a loop. Zero values are the defaults.
type Options[In any] struct {
	Tick        In            // stepped when the core's Wake is reached
	Log         *slog.Logger  // slog.Default
	Queue       int           // inputs that may wait: 8192
	Batch       int           // inputs per save: 512
	SaveTimeout time.Duration // after which a save has failed and is repeated: 10 s
	Observe     func(Sample)  // called on the owner's goroutine after each batch; must not block
	// WhenFull reports which inputs, including the Tick, are stepped while saves fail. Their saves
	// are added to the pending ones, and only their volatile messages are sent before that.
	// nil: none. Inputs of Do are never stepped then, because Do promises durability.
	WhenFull func(In) bool
}

// Sample is the cost of one batch.
type Sample struct {
	Steps     int
	Docs      int
	Envelopes int
	Stepping  time.Duration
	Saving    time.Duration // including repetitions
	Waiting   int           // inputs that wait in the queue
	Failed    int           // saves that failed and were repeated
}

// The pauses between repetitions of a save that failed.
const (
	minPause = 50 * time.Millisecond
	maxPause = 5 * time.Second
)

// Loop owns a core.
type Loop[In any] struct {
	core    step.Core[In]
	store   store.Store
	send    func([]wire.Envelope)
	opts    Options[In]
	queue   chan *call[In]
	ended   chan struct{}
	dropped atomic.Uint64
	stalled atomic.Pointer[stall]
	wake    time.Time // used by the owner's goroutine only
	batch   []*call[In]
}

// stall describes why saves fail now.
type stall struct {
	err  error
	shut bool // maxUnsaved is reached: no further inputs are queued
}

// call is an input or a read (fn without input) that waits for the owner.
type call[In any] struct {
	in    In
	step  bool
	fn    func()
	state atomic.Int32
	done  chan error // buffered; used by the owner's goroutine once queued; nil for Post and after the answer
	err   error      // the core's; used by the owner's goroutine only
}

// The states of a call: either the owner takes it or the caller abandons it.
const (
	waiting = iota
	taken
	abandoned
)

func (c *call[In]) take() bool    { return c.state.CompareAndSwap(waiting, taken) }
func (c *call[In]) abandon() bool { return c.state.CompareAndSwap(waiting, abandoned) }

// answer sends the result to the caller, once.
func (c *call[In]) answer(err error) {
	if c.done != nil {
		c.done <- err
		c.done = nil
	}
}

// read runs the function of a call without input, once.
func (c *call[In]) read() {
	if !c.step && c.fn != nil {
		c.fn()
		c.fn = nil
	}
}

// refuse answers a call whose batch cannot be saved now: an input with refusal, or with the core's
// error if the core refused it. A read is answered without error.
func (c *call[In]) refuse(refusal error) {
	c.read()
	if c.step && c.err == nil {
		c.answer(refusal)
	}
	c.answer(c.err)
}

// New makes a loop that owns core. send is called on the owner's goroutine with messages whose
// step is durable, and must not block: it drops messages that the transport cannot take, and the
// core repeats them.
func New[In any](core step.Core[In], s store.Store, send func([]wire.Envelope), o Options[In]) *Loop[In] {
	o.Log = cmp.Or(o.Log, slog.Default())
	o.Queue, o.Batch, o.SaveTimeout = cmp.Or(o.Queue, 8192), cmp.Or(o.Batch, 512), cmp.Or(o.SaveTimeout, 10*time.Second)
	if o.Observe == nil {
		o.Observe = func(Sample) {}
	}
	return &Loop[In]{core: core, store: s, send: send, opts: o, queue: make(chan *call[In], o.Queue), ended: make(chan struct{})}
}

// Post adds an input and never blocks. The input is dropped and counted if the queue is full, if
// saves fail (except for WhenFull), or if the loop has ended.
func (l *Loop[In]) Post(in In) { l.Offer(in) }

// Offer is Post, and reports whether the input was queued. A queued input for WhenFull is stepped
// even if saves fail, unless the loop ends before.
func (l *Loop[In]) Offer(in In) bool {
	s := l.stalled.Load()
	open := s == nil || !s.shut && l.whenFull(in)
	select {
	case <-l.ended:
		open = false
	default:
	}
	if open {
		select {
		case l.queue <- &call[In]{in: in, step: true}:
			return true
		default:
		}
	}
	l.dropped.Add(1)
	return false
}

// Dropped returns the number of dropped posts.
func (l *Loop[In]) Dropped() uint64 { return l.dropped.Load() }

// Stalled returns why saves fail now, or nil.
func (l *Loop[In]) Stalled() error {
	if s := l.stalled.Load(); s != nil {
		return s.err
	}
	return nil
}

// Do adds an input and returns nil when its saves are durable and its messages are sent, or the
// error with which the core refused it. after, which may be nil, runs on the owner's goroutine
// right after the step, refused or not, to read the result. The caller may use that result only if
// Do returns nil.
//
// While saves fail, Do fails at once with ErrFull or ErrUnavailable. If the input was stepped
// before the first failure, it takes effect when the store recovers; the caller may repeat it.
func (l *Loop[In]) Do(ctx context.Context, in In, after func()) error {
	if err := l.Stalled(); err != nil {
		return err
	}
	return l.wait(ctx, &call[In]{in: in, step: true, fn: after})
}

// Read runs fn on the owner's goroutine, between steps. What fn reads is durable, except while
// saves fail. fn must be quick and must not keep references to the core's state.
func (l *Loop[In]) Read(ctx context.Context, fn func()) error {
	return l.wait(ctx, &call[In]{fn: fn})
}

func (l *Loop[In]) wait(ctx context.Context, c *call[In]) error {
	done := make(chan error, 1)
	c.done = done
	select {
	case l.queue <- c:
	case <-l.ended:
		return errEnded
	case <-ctx.Done():
		return timedOut(ctx)
	}
	select {
	case err := <-done:
		return err
	case <-l.ended:
		if c.abandon() {
			return errEnded
		}
	case <-ctx.Done():
		if c.abandon() {
			return timedOut(ctx)
		}
	}
	// The owner has taken the call and may be running its function.
	return <-done
}

var errEnded = fmt.Errorf("the daemon is stopping: %w", api.ErrUnavailable)

func timedOut(ctx context.Context) error {
	return fmt.Errorf("wait for the core: %w: %w", api.ErrTimeout, context.Cause(ctx))
}

// Run owns the core until ctx ends, and then returns nil. It returns an error if repeating a save
// cannot succeed: another process writes to the store (store.ErrConflict), or the store is closed
// or refuses a document. It is called once.
func (l *Loop[In]) Run(ctx context.Context) error {
	defer l.end()
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if !l.wake.IsZero() {
			timer.Reset(max(0, time.Until(l.wake)))
			due = timer.C
		}
		select {
		case <-ctx.Done():
			return nil
		case <-due:
		case c := <-l.queue:
			l.collect(c)
		}
		l.fillBatch()
		if err := l.runBatch(ctx); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
	}
}

func (l *Loop[In]) end() {
	close(l.ended)
	for {
		select {
		case c := <-l.queue:
			if c.take() {
				c.answer(errEnded)
			}
		default:
			return
		}
	}
}

func (l *Loop[In]) collect(c *call[In]) {
	if c.take() {
		l.batch = append(l.batch, c)
	}
}

func (l *Loop[In]) fillBatch() {
	for len(l.batch) < l.opts.Batch {
		select {
		case c := <-l.queue:
			l.collect(c)
		default:
			return
		}
	}
}

// runBatch steps one batch, saves, sends, and answers.
func (l *Loop[In]) runBatch(ctx context.Context) error {
	batch := l.batch
	defer func() {
		clear(l.batch)
		l.batch = l.batch[:0]
	}()
	var all step.Effects
	var s Sample
	began := time.Now()
	take := func(in In) error {
		eff := l.core.Step(time.Now(), in)
		s.Steps++
		all.Save = append(all.Save, eff.Save...)
		all.Send = append(all.Send, eff.Send...)
		if eff.Err == nil {
			l.wake = eff.Wake
		}
		return eff.Err
	}
	// The Tick comes first, because the queue may never be empty.
	if !l.wake.IsZero() && !l.wake.After(began) {
		_ = take(l.opts.Tick)
	}
	for _, c := range batch {
		if !c.step {
			continue
		}
		c.err = take(c.in)
		if c.fn != nil {
			c.fn()
		}
	}
	stepped := time.Now()
	if err := l.save(ctx, &all, batch, &s); err != nil {
		return err
	}
	saved := time.Now()
	if len(all.Send) > 0 {
		l.send(all.Send)
	}
	for _, c := range batch {
		c.read()
		c.answer(c.err)
	}
	if s.Steps > 0 {
		s.Docs, s.Envelopes = len(all.Save), len(all.Send)
		s.Stepping, s.Saving, s.Waiting = stepped.Sub(began), saved.Sub(stepped), len(l.queue)
		l.opts.Observe(s)
	}
	return nil
}

// save makes all.Save durable and retries until it succeeds, ctx ends or the error is final. After
// the first failure it answers the callers of the batch.
func (l *Loop[In]) save(ctx context.Context, all *step.Effects, batch []*call[In], s *Sample) error {
	if len(all.Save) == 0 {
		return nil
	}
	defer l.stalled.Store(nil)
	for pause := minPause; ; pause = min(2*pause, maxPause) {
		err := l.saveOnce(ctx, all.Save)
		if err == nil {
			if s.Failed > 0 {
				l.opts.Log.Info("store works again", "failed", s.Failed)
			}
			return nil
		}
		s.Failed++
		refusal := refusal(err)
		for _, c := range batch {
			c.refuse(refusal)
		}
		if ctx.Err() != nil || final(err) {
			return fmt.Errorf("save %d documents: %w", len(all.Save), err)
		}
		if s.Failed == 1 {
			l.opts.Log.Error("save failed, retrying", "err", err)
		}
		l.stall(refusal, all)
		if s.Failed == 1 {
			all.Send = l.sendVolatile(all.Send)
		}
		if err := l.serveUnsaved(ctx, pause, refusal, all); err != nil {
			return err
		}
	}
}

// maxUnsaved is the number of pending documents above which no further inputs are queued while
// saves fail. Inputs that are in the queue are still stepped.
const maxUnsaved = 16384

// stall makes the failure visible to Post and Do.
func (l *Loop[In]) stall(refusal error, all *step.Effects) {
	l.stalled.Store(&stall{refusal, len(all.Save) >= maxUnsaved})
}

func (l *Loop[In]) saveOnce(ctx context.Context, docs []store.Doc) error {
	ctx, cancel := context.WithTimeout(ctx, l.opts.SaveTimeout)
	defer cancel()
	return l.store.Save(ctx, docs)
}

// serveUnsaved serves the queue during the pause between two saves: it answers reads, steps the inputs
// for WhenFull, and refuses or drops the rest.
func (l *Loop[In]) serveUnsaved(ctx context.Context, pause time.Duration, refusal error, all *step.Effects) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		var due <-chan time.Time
		if !l.wake.IsZero() && l.whenFull(l.opts.Tick) && len(all.Save) < maxUnsaved {
			due = time.After(max(0, time.Until(l.wake)))
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
			return nil
		case <-due:
			l.stepUnsaved(l.opts.Tick, refusal, all)
		case c := <-l.queue:
			switch {
			case !c.take():
			case c.step && c.done == nil && l.whenFull(c.in):
				l.stepUnsaved(c.in, refusal, all)
			case c.step && c.done == nil:
				l.dropped.Add(1)
			default:
				c.refuse(refusal)
			}
		}
	}
}

func (l *Loop[In]) whenFull(in In) bool { return l.opts.WhenFull != nil && l.opts.WhenFull(in) }

func (l *Loop[In]) stepUnsaved(in In, refusal error, all *step.Effects) {
	eff := l.core.Step(time.Now(), in)
	if eff.Err == nil {
		l.wake = eff.Wake
	}
	all.Save = append(all.Save, eff.Save...)
	all.Send = append(all.Send, l.sendVolatile(eff.Send)...)
	if len(all.Save) >= maxUnsaved {
		l.stall(refusal, all)
	}
}

// sendVolatile sends the volatile messages and returns the rest.
func (l *Loop[In]) sendVolatile(send []wire.Envelope) []wire.Envelope {
	var now, later []wire.Envelope
	for _, e := range send {
		if e.Volatile {
			now = append(now, e)
		} else {
			later = append(later, e)
		}
	}
	if len(now) > 0 {
		l.send(now)
	}
	return later
}

// refusal returns the error that callers get if a save failed.
func refusal(err error) error {
	if errors.Is(err, api.ErrFull) {
		return fmt.Errorf("not saved: the disk with the store is full; free some space: %w", err)
	}
	return fmt.Errorf("not saved: the store accepts no writes now: %w: %w", api.ErrUnavailable, err)
}

// final reports whether repeating a save cannot succeed.
func final(err error) bool {
	return slices.ContainsFunc([]error{store.ErrConflict, store.ErrClosed, store.ErrCorrupt, api.ErrInvalid, api.ErrTooLarge},
		func(e error) bool { return errors.Is(err, e) })
}
