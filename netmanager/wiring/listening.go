package wiring

import (
	"context"
	"log/slog"
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
	// lookRest is how many times as long as a look took there is none at least: of sockets
	// the kernel passes over, a workload may have any number.
	lookRest = 10
)

// untilNext is the pause after a look, by how long the workload has been watched and
// how long the look took.
func untilNext(watched, look time.Duration) time.Duration {
	pause := lookOften
	if watched >= lookFor {
		pause = lookLess
	}
	return max(pause, lookRest*look)
}

// listening waits for workloads to listen, each once, and then looks no more.
type listening struct {
	*watches
	log *slog.Logger
}

// newListening calls ready, once, for a workload that listens, unless it is forgotten
// before.
func newListening(ready func(context.Context, api.Attach), log *slog.Logger) *listening {
	l := &listening{log: log}
	l.watches = newWatches(func(ctx context.Context, a api.Attach) {
		if l.listens(ctx, a) {
			ready(ctx, a)
		}
	})
	return l
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
		yes, looked := false, time.Now()
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
		default:
			look.Reset(untilNext(looked.Sub(began), time.Since(looked)))
		}
	}
}
