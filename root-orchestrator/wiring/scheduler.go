package wiring

import (
	"context"
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/scheduler-plugins/binpack"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/outside"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
	"github.com/treeline-edge/treeline/scheduler-plugins/spread"
)

// builtin are the schedulers of the house.
var builtin = map[string]sched.Plugin{
	rom.Plugin{}.Name():     rom.Plugin{},
	ldp.Plugin{}.Name():     ldp.Plugin{},
	spread.Plugin{}.Name():  spread.Plugin{},
	binpack.Plugin{}.Name(): binpack.Plugin{},
}

func (c Config) validateScheduler() error {
	if c.Scheduler != "" && builtin[c.Scheduler] == nil && !outside.Is(c.Scheduler) {
		return fmt.Errorf("scheduler: %q is none of %s, wasm:/path/to/module or an http:// or https:// URL: %w",
			c.Scheduler, strings.Join(step.Keys(builtin), ", "), api.ErrInvalid)
	}
	if c.MovesPerHour < 0 || c.MovesPerHour > 60 {
		return fmt.Errorf("moves_per_hour: %d, want 0 to 60: %w", c.MovesPerHour, api.ErrInvalid)
	}
	return nil
}

// openScheduler makes the scheduler outside ready, nil if the operator chose none.
func (c Config) openScheduler(ctx context.Context) (*outside.Scheduler, error) {
	if !outside.Is(c.Scheduler) {
		return nil, nil
	}
	return outside.Open(ctx, c.Scheduler)
}

// ranker asks the scheduler outside what the core wants to know.
type ranker struct {
	to   *outside.Scheduler // nil: there is none
	asks chan sched.Ask
	post func(root.Input)
}

// maxAsks is how many questions may wait for the scheduler. What finds no room, the
// core decides itself when its time is over.
const maxAsks = 256

func newRanker(to *outside.Scheduler, post func(root.Input)) *ranker {
	return &ranker{to: to, asks: make(chan sched.Ask, maxAsks), post: post}
}

// send takes a question of the core and never blocks.
func (r *ranker) send(q sched.Ask) {
	select {
	case r.asks <- q:
	default:
	}
}

// run asks until ctx ends.
func (r *ranker) run(ctx context.Context) error {
	if r.to == nil {
		<-ctx.Done()
		return nil
	}
	done := make(chan struct{})
	for range outside.AtOnce {
		go func() {
			r.work(ctx)
			done <- struct{}{}
		}()
	}
	for range outside.AtOnce {
		<-done
	}
	return r.to.Close(context.WithoutCancel(ctx))
}

func (r *ranker) work(ctx context.Context) {
	for {
		select {
		case q := <-r.asks:
			r.post(root.Ranked{Answer: r.to.Rank(ctx, q)})
		case <-ctx.Done():
			return
		}
	}
}
