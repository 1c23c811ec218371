package wiring

import (
	"context"
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
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
