// Package choice selects the scheduler that a daemon runs from its operator's setting: a
// built-in plugin by name, or an external scheduler (package extsched/client).
//
//	err := choice.Validate(setting)
//	conf.Plugin = choice.BuiltIn(setting)
//	ext, err := choice.Open(ctx, setting)
package choice

import (
	"context"
	"fmt"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/binpack"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/ldp"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
	"github.com/treeline-edge/treeline/scheduler-plugins/spread"
)

// builtIn are the built-in plugins, sorted by name.
var builtIn = []sched.Plugin{binpack.Plugin{}, ldp.Plugin{}, rom.Plugin{}, spread.Plugin{}}

// BuiltIn returns the built-in plugin that a setting names, or nil for any other setting.
func BuiltIn(setting string) sched.Plugin {
	for _, p := range builtIn {
		if p.Name() == setting {
			return p
		}
	}
	return nil
}

// Validate returns ErrInvalid for a setting that names no scheduler, such as "". It does not
// check that an external scheduler exists; Open does.
func Validate(setting string) error {
	if BuiltIn(setting) != nil || client.IsExternal(setting) {
		return nil
	}
	var names []string
	for _, p := range builtIn {
		names = append(names, p.Name())
	}
	return fmt.Errorf("scheduler: %q is none of %s, wasm:/path/to/module or an http:// or https:// URL: %w",
		setting, strings.Join(names, ", "), api.ErrInvalid)
}

// Open prepares the external scheduler that a setting names. It returns nil for any other
// setting. Its errors are those of client.Open.
func Open(ctx context.Context, setting string) (*client.Scheduler, error) {
	if !client.IsExternal(setting) {
		return nil, nil
	}
	return client.Open(ctx, setting)
}
