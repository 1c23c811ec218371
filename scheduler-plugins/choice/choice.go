// Package choice is which scheduler a daemon runs, by its operator's setting: one
// of the house by its name, or one outside (package outside). What the cores do
// with it is theirs; in particular a built-in stands in for one outside that fails.
//
//	err := choice.Validate(setting)
//	conf.Plugin = choice.BuiltIn(setting)
//	out, err := choice.Open(ctx, setting)
package choice

import (
	"context"
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/binpack"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/outside"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
	"github.com/treeline-edge/treeline/scheduler-plugins/spread"
)

// house are the schedulers of the house, in the order of their names.
var house = []sched.Plugin{binpack.Plugin{}, ldp.Plugin{}, rom.Plugin{}, spread.Plugin{}}

// BuiltIn is the scheduler of the house that a setting names, nil for any other.
func BuiltIn(setting string) sched.Plugin {
	for _, p := range house {
		if p.Name() == setting {
			return p
		}
	}
	return nil
}

// Validate is ErrInvalid for a setting that can name no scheduler, such as "".
// Whether one outside is there, Open finds out.
func Validate(setting string) error {
	if BuiltIn(setting) != nil || outside.Is(setting) {
		return nil
	}
	var names []string
	for _, p := range house {
		names = append(names, p.Name())
	}
	return fmt.Errorf("scheduler: %q is none of %s, wasm:/path/to/module or an http:// or https:// URL: %w",
		setting, strings.Join(names, ", "), api.ErrInvalid)
}

// Open makes the scheduler outside ready that a setting names, and is nil where it
// names none. Errors are outside.Open's.
func Open(ctx context.Context, setting string) (*outside.Scheduler, error) {
	if !outside.Is(setting) {
		return nil, nil
	}
	return outside.Open(ctx, setting)
}
