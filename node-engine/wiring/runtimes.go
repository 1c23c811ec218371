package wiring

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	goruntime "runtime"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/process"
)

const (
	goarch = goruntime.GOARCH
	goos   = goruntime.GOOS
)

// openers are the runtimes that this engine knows.
var openers = map[string]func(Config) (runtime.Runtime, error){
	"process": openProcess,
}

func runtimes() []string { return slices.Sorted(maps.Keys(openers)) }

// openRuntime opens the runtime that is configured, or found.
func openRuntime(c Config) (runtime.Runtime, error) {
	name := c.Runtime
	if name == "auto" {
		name = "process"
		if _, err := os.Stat(c.Containerd.Address); err == nil && openers["containerd"] != nil {
			name = "containerd"
		}
	}
	open := openers[name]
	if open == nil {
		return nil, fmt.Errorf("runtime %q: this engine has %v: %w", name, runtimes(), api.ErrInvalid)
	}
	r, err := open(c)
	if err != nil {
		return nil, fmt.Errorf("open the runtime %s: %w", name, err)
	}
	return r, nil
}

func openProcess(c Config) (runtime.Runtime, error) {
	return process.New(process.Config{
		StateDir: filepath.Join(c.Data, "process"), Allow: c.Process.Allow,
		CgroupParent: c.Process.CgroupParent, UID: c.Process.UID, GID: c.Process.GID,
	})
}
