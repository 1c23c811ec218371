package wiring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
	"github.com/treeline-edge/treeline/node-engine/runtime/process"
	"github.com/treeline-edge/treeline/node-engine/volume"
)

var runtimes = []string{"containerd", "process"}

// openRuntime opens the runtime that is configured, or detected. The caller closes it with
// closeRuntime.
func openRuntime(c Config, found *devices.Devices, log *slog.Logger) (rt runtime.Runtime, err error) {
	if c.Fake != nil {
		return c.Fake, nil
	}
	name := c.runtimeName()
	switch name {
	case "containerd":
		cfg := c.containerdConfig()
		cfg.Devices = found
		rt, err = containerd.New(cfg, log)
	case "process":
		rt, err = process.New(process.Config{Options: c.Process, StateDir: filepath.Join(c.Data, "process")})
	default:
		err = fmt.Errorf("want one of %v: %w", runtimes, api.ErrInvalid)
	}
	if err != nil {
		return nil, fmt.Errorf("open the runtime %q: %w", name, err)
	}
	return rt, nil
}

// features returns the features of SLAs that the node supports, sorted.
func features(rt runtime.Runtime) []string {
	out := []string{api.FeatureDeadline, api.FeatureHealth}
	if _, ok := rt.(runtime.Executor); ok {
		out = append(out, api.FeatureHealthCommand)
	}
	if _, ok := rt.(runtime.Attacher); ok {
		out = append(out, api.FeatureInput)
	}
	return out
}

func (c Config) closeRuntime(rt runtime.Runtime) {
	if c.Fake == nil {
		_ = rt.Close()
	}
}

// runtimeName returns the runtime that is configured, or detected.
func (c Config) runtimeName() string {
	if c.Runtime != "auto" {
		return c.Runtime
	}
	if _, err := os.Stat(c.Containerd.Address); err == nil {
		return "containerd"
	}
	return "process"
}

// volumesDir returns the absolute path of the directory of volumes.
func (c Config) volumesDir() string {
	dir := cmp.Or(c.Volumes, filepath.Join(c.Data, "volumes"))
	if abs, err := filepath.Abs(dir); err == nil {
		return abs
	}
	return dir
}

// openVolumes opens the volumes of a node whose runtime supports them, otherwise it returns nil.
func (c Config) openVolumes(ctx context.Context, log *slog.Logger) (*volume.Manager, error) {
	if c.Fake != nil || c.runtimeName() != "containerd" {
		return nil, nil
	}
	return volume.Open(ctx, c.volumesDir(), log)
}

// containerdConfig returns the runtime's configuration, without the devices.
func (c Config) containerdConfig() containerd.Config {
	data := c.Data
	if abs, err := filepath.Abs(data); err == nil {
		data = abs
	}
	cfg := containerd.Config{Options: c.Containerd, StateDir: filepath.Join(data, "containerd"), AllowPrivileged: c.Privileged}
	cfg.Network = c.network()
	return cfg
}

// runtimeFile has the name of the runtime with which the node joined.
const runtimeFile = "runtime"

// savedRuntime returns the runtime of this node: the one with which it joined. With another
// runtime the node would not see its workloads, and would report that they are gone. auto
// chooses once, before the node joins.
//
// A node that joined under a release without the file has the state directories of the runtimes
// that it used. If it has several, auto chooses containerd.
func (c Config) savedRuntime(dir *os.Root) (string, error) {
	kept, err := dir.ReadFile(runtimeFile)
	name := strings.TrimSpace(string(kept))
	switch {
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return "", fmt.Errorf("read the runtime of this node: %w", err)
	case err != nil && c.Runtime == "auto" && clusterlink.Joined(dir):
		for _, had := range runtimes {
			if _, err := dir.Stat(had); err == nil {
				return had, nil
			}
		}
		return c.runtimeName(), nil
	case err != nil:
		return c.runtimeName(), nil
	case !slices.Contains(runtimes, name):
		return "", fmt.Errorf("%s has the runtime %q, want one of %s: %w",
			filepath.Join(c.Data, runtimeFile), name, strings.Join(runtimes, ", "), api.ErrInvalid)
	case c.Runtime != "auto" && c.Runtime != name:
		return "", fmt.Errorf("runtime: %q is configured, but this node joined with %s, whose workloads %[1]q does not see; set runtime to %[2]s, or drain the node and remove %[3]s: %[4]w",
			c.Runtime, name, filepath.Join(c.Data, runtimeFile), api.ErrConflict)
	}
	return name, nil
}

// saveRuntime saves the runtime of a node that has joined.
func (c Config) saveRuntime(dir *os.Root) error {
	if _, err := dir.Stat(runtimeFile); err == nil {
		return nil
	}
	if err := ca.WriteFile(dir, runtimeFile, []byte(c.Runtime+"\n"), 0o600); err != nil {
		return fmt.Errorf("save the runtime of this node: %w", err)
	}
	return nil
}
