package sharedtest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/store/shared"
)

// Link is a network with faults between a process and its logs: requests and answers take time or are
// lost, and a request whose caller has given up can still arrive. The process can be paused. Times are
// those of package testing/synctest.
type Link struct {
	timeout time.Duration // after which a call fails

	mu     sync.Mutex // guards all below
	random *rand.Rand
	loss   float64
	late   float64       // of requests, which take up to ten times the timeout
	cut    bool          // no request arrives
	deaf   bool          // no answer arrives
	paused chan struct{} // closed when the process continues; nil: it runs
	calls  sync.WaitGroup
}

func NewLink(seed uint64, timeout time.Duration) *Link {
	return &Link{timeout: timeout, random: rand.New(rand.NewPCG(seed, 1))}
}

// Faults sets how many requests and answers are lost, and how many requests are late.
func (l *Link) Faults(loss, late float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.loss, l.late = loss, late
}

// Cut cuts requests, answers, or both.
func (l *Link) Cut(requests, answers bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cut, l.deaf = requests, answers
}

// Pause stops the process: it sends nothing and takes no answer until Continue.
func (l *Link) Pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused == nil {
		l.paused = make(chan struct{})
	}
}

func (l *Link) Continue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused != nil {
		close(l.paused)
		l.paused = nil
	}
}

// Running waits while the process is paused.
func (l *Link) Running() {
	for {
		l.mu.Lock()
		paused := l.paused
		l.mu.Unlock()
		if paused == nil {
			return
		}
		<-paused
	}
}

// Settle waits until no request is under way.
func (l *Link) Settle() { l.calls.Wait() }

// fate decides over a request and its answer.
func (l *Link) fate() (lost, unanswered bool, there, back time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	there, back = l.delay(), l.delay()
	if l.random.Float64() < l.late {
		there = time.Duration(l.random.Int64N(int64(10 * l.timeout)))
	}
	return l.cut || l.random.Float64() < l.loss, l.deaf || l.random.Float64() < l.loss, there, back
}

func (l *Link) delay() time.Duration {
	return time.Duration(l.random.Int64N(int64(20 * time.Millisecond)))
}

var errLink = fmt.Errorf("no answer: %w", api.ErrUnavailable)

// call sends a request. do takes effect at the engine.
func call[T any](ctx context.Context, l *Link, do func(context.Context) (T, error)) (T, error) {
	l.Running()
	lost, unanswered, there, back := l.fate()
	type result struct {
		val T
		err error
	}
	answer := make(chan result, 1)
	if !lost {
		l.calls.Go(func() {
			time.Sleep(there)
			val, err := do(context.WithoutCancel(ctx))
			time.Sleep(back)
			if !unanswered {
				answer <- result{val, err}
			}
		})
	}
	timer := time.NewTimer(l.timeout)
	defer timer.Stop()
	var r result
	select {
	case r = <-answer:
	case <-timer.C:
		r.err = errLink
	case <-ctx.Done():
		r.err = ctx.Err()
	}
	l.Running()
	return r.val, r.err
}

// To returns a log that is reached through the link.
func (l *Link) To(inner shared.Log) shared.Log { return &far{l, inner} }

type far struct {
	*Link
	inner shared.Log
}

type at struct {
	entry shared.Entry
	ok    bool
}

func (f *far) Append(ctx context.Context, e shared.Entry) (bool, error) {
	return call(ctx, f.Link, func(ctx context.Context) (bool, error) { return f.inner.Append(ctx, e) })
}

func (f *far) At(ctx context.Context, position uint64) (shared.Entry, bool, error) {
	r, err := call(ctx, f.Link, func(ctx context.Context) (at, error) {
		e, ok, err := f.inner.At(ctx, position)
		return at{e, ok}, err
	})
	return r.entry, r.ok, err
}

func (f *far) Next(ctx context.Context, from uint64, n int) ([]shared.Entry, error) {
	return call(ctx, f.Link, func(ctx context.Context) ([]shared.Entry, error) { return f.inner.Next(ctx, from, n) })
}

func (f *far) Entries(ctx context.Context, fn func(shared.Entry) error) error {
	all, err := call(ctx, f.Link, func(ctx context.Context) (all []shared.Entry, err error) {
		err = f.inner.Entries(ctx, func(e shared.Entry) error {
			all = append(all, e)
			return nil
		})
		return all, err
	})
	if err != nil {
		return err
	}
	for _, e := range all {
		if err := fn(e); err != nil {
			return err
		}
	}
	return nil
}

func (f *far) Delete(ctx context.Context, positions ...uint64) error {
	_, err := call(ctx, f.Link, func(ctx context.Context) (struct{}, error) { return struct{}{}, f.inner.Delete(ctx, positions...) })
	return err
}

func (f *far) Close() error { return nil }
