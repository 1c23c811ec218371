package wiring

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/link"
)

// The pauses between looks at whether a workload listens: most do within half a
// second, or not for long. One that does not within longest is served all the
// same: it may only call others, or listen in a way that is not seen.
const (
	lookOften = 5 * time.Millisecond
	lookFor   = 500 * time.Millisecond
	lookLess  = 50 * time.Millisecond
	longest   = 3 * time.Second
)

// listening waits for workloads to listen, each once, and then looks no more.
type listening struct {
	ready func(ctx context.Context, a api.Attach) // it listens; called once, unless it is forgotten before
	log   *slog.Logger

	mu     sync.Mutex // guards the fields below
	ctx    context.Context
	waits  map[api.Key]wait // under way, or to begin with Run
	wg     sync.WaitGroup
	closed bool
}

type wait struct {
	attach api.Attach
	end    context.CancelFunc // nil: not begun
}

func newListening(ready func(context.Context, api.Attach), log *slog.Logger) *listening {
	return &listening{ready: ready, log: log, waits: map[api.Key]wait{}}
}

// Run waits until ctx ends.
func (l *listening) Run(ctx context.Context) error {
	l.mu.Lock()
	l.ctx = ctx
	for _, w := range l.waits {
		l.begin(w.attach)
	}
	l.mu.Unlock()
	<-ctx.Done()
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.wg.Wait()
	return nil
}

// wait has a workload waited for, unless it is already, in the same namespace.
func (l *listening) wait(a api.Attach) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, ok := l.waits[a.Key]
	switch {
	case l.closed, ok && old.attach.NetNS == a.NetNS:
	case l.ctx == nil:
		l.waits[a.Key] = wait{attach: a}
	default:
		if ok {
			old.end()
		}
		l.begin(a)
	}
}

// begin is called with mu held.
func (l *listening) begin(a api.Attach) {
	ctx, end := context.WithCancel(l.ctx)
	l.waits[a.Key] = wait{a, end}
	l.wg.Go(func() {
		defer end()
		if l.listens(ctx, a) {
			l.ready(ctx, a)
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if ctx.Err() == nil { // else somebody else saw to it
			delete(l.waits, a.Key)
		}
	})
}

// forget waits no more.
func (l *listening) forget(k api.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w, ok := l.waits[k]; ok {
		delete(l.waits, k)
		if w.end != nil {
			w.end()
		}
	}
}

// listens returns when the workload listens or longest is over: true; or when ctx
// ends.
func (l *listening) listens(ctx context.Context, a api.Attach) bool {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, longest)
	defer cancel()
	s, err := link.SocketsOf(a.NetNS)
	if err == nil {
		defer s.Close()
	}
	look := time.NewTimer(0)
	defer look.Stop()
	for {
		select {
		case <-look.C:
		case <-ctx.Done():
			return context.Cause(ctx) == context.DeadlineExceeded
		}
		yes := false
		if err == nil {
			yes, err = s.Listen()
		}
		switch {
		case yes:
			l.log.Debug("workload listens", "instance", a.Instance, "epoch", a.Epoch, "after", time.Since(began))
			return true
		case err != nil: // whether it listens is not to be seen
			l.log.Warn("whether a workload listens is not seen", "instance", a.Instance, "epoch", a.Epoch, "err", err)
			<-ctx.Done()
			return context.Cause(ctx) == context.DeadlineExceeded
		case time.Since(began) < lookFor:
			look.Reset(lookOften)
		default:
			look.Reset(lookLess)
		}
	}
}
