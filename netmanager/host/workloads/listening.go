package workloads

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/link"
)

// The pauses between checks whether a workload listens. Most workloads listen within earlyPeriod, or
// much later.
const (
	earlyPause  = 5 * time.Millisecond
	earlyPeriod = 500 * time.Millisecond
	latePause   = 50 * time.Millisecond
	// ListenTimeout is when a workload that does not listen gets flows nevertheless: it may be a client
	// only, or the check may not detect its sockets.
	ListenTimeout = 3 * time.Second
	// checkShare bounds the cost of checks: a pause is at least checkShare times as long as the check
	// before it. The kernel walks all sockets of the workload, whose number is not bounded. Early pauses
	// are shorter, because a check also takes long when the processor is busy, and packets may wait.
	checkShare      = 10
	earlyCheckShare = 2
)

// pauseAfter returns the pause after a check, from the duration of the check and the time since the
// workload is watched.
func pauseAfter(watched, check time.Duration) time.Duration {
	if watched < earlyPeriod {
		return max(earlyPause, earlyCheckShare*check)
	}
	return max(latePause, checkShare*check)
}

// NewListening returns a watcher that calls ready once for each workload, when it listens or
// after ListenTimeout.
func NewListening(ready func(context.Context, wire.Attach), log *slog.Logger) *Watcher {
	return newWatcher(func(ctx context.Context, a wire.Attach) {
		if awaitListen(ctx, a, log) {
			ready(ctx, a)
		}
	})
}

// awaitListen returns true when the workload listens or after ListenTimeout, false when ctx
// ends.
func awaitListen(ctx context.Context, a wire.Attach, log *slog.Logger) bool {
	began := time.Now()
	ctx, cancel := context.WithTimeout(ctx, ListenTimeout)
	defer cancel()
	s, err := link.SocketsOf(a.NetNS)
	if err == nil {
		defer s.Close()
	}
	check := time.NewTimer(0)
	defer check.Stop()
	for {
		select {
		case <-check.C:
		case <-ctx.Done():
			return errors.Is(context.Cause(ctx), context.DeadlineExceeded)
		}
		listens, now := false, time.Now()
		if err == nil {
			listens, err = s.Listen()
		}
		switch {
		case listens:
			log.Debug("workload listens", "instance", a.Instance, "epoch", a.Epoch, "after", time.Since(began))
			return true
		case err != nil:
			log.Warn("check whether a workload listens failed", "instance", a.Instance, "epoch", a.Epoch, "err", err)
			<-ctx.Done()
			return errors.Is(context.Cause(ctx), context.DeadlineExceeded)
		default:
			check.Reset(pauseAfter(now.Sub(began), time.Since(now)))
		}
	}
}
