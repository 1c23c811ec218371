package wiring

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	goruntime "runtime"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
	"github.com/treeline-edge/treeline/node-engine/runtime/guard"
	"github.com/treeline-edge/treeline/node-engine/runtime/process"
)

const (
	goarch = goruntime.GOARCH
	goos   = goruntime.GOOS
)

// openers are the runtimes that this engine knows.
var openers = map[string]func(Config, *devices.Devices, *slog.Logger) (runtime.Runtime, error){
	"containerd": openContainerd,
	"process":    openProcess,
}

func runtimes() []string { return slices.Sorted(maps.Keys(openers)) }

// openRuntime opens the runtime that is configured, or found.
func openRuntime(c Config, found *devices.Devices, log *slog.Logger) (runtime.Runtime, error) {
	name := c.runtimeName()
	open := openers[name]
	if open == nil {
		return nil, fmt.Errorf("runtime %q: this engine has %v: %w", name, runtimes(), api.ErrInvalid)
	}
	r, err := open(c, found, log)
	if err != nil {
		return nil, fmt.Errorf("open the runtime %s: %w", name, err)
	}
	return r, nil
}

// runtimeName is the runtime that is configured, or found.
func (c Config) runtimeName() string {
	if c.Runtime != "auto" {
		return c.Runtime
	}
	if _, err := os.Stat(c.Containerd.Address); err == nil {
		return "containerd"
	}
	return "process"
}

func openProcess(c Config, _ *devices.Devices, _ *slog.Logger) (runtime.Runtime, error) {
	return process.New(process.Config{
		StateDir: filepath.Join(c.Data, "process"), Allow: c.Process.Allow,
		CgroupParent: c.Process.CgroupParent, UID: c.Process.UID, GID: c.Process.GID,
	})
}

func openContainerd(c Config, found *devices.Devices, log *slog.Logger) (runtime.Runtime, error) {
	cfg := c.containerdConfig()
	if !filepath.IsAbs(cfg.StateDir) { // files of it are mounted into containers
		return nil, fmt.Errorf("make the data directory %s absolute: %w", c.Data, api.ErrInvalid)
	}
	cfg.Devices = found
	return containerd.New(cfg, log)
}

// containerdConfig is the runtime's configuration, without the devices.
func (c Config) containerdConfig() containerd.Config {
	o, data := c.Containerd, c.Data
	if abs, err := filepath.Abs(data); err == nil {
		data = abs
	}
	cfg := containerd.Config{
		Address: o.Address, Namespace: o.Namespace, Snapshotter: o.Snapshotter, Network: c.network(),
		ContainerdRoot: o.Root, OpenFiles: o.OpenFiles, HideCgroups: !o.CgroupMount,
		StateDir: filepath.Join(data, "containerd"), ImageDirs: o.ImageDirs, HighWater: o.HighWater,
		AllowPrivileged: c.Privileged, Handlers: map[string]containerd.Handler{},
	}
	cfg.RegistryNetworks, _ = c.registryNetworks() // they were validated
	for name, h := range o.Handlers {
		cfg.Handlers[name] = containerd.Handler{Runtime: h.Runtime, Binary: h.Binary}
	}
	for _, r := range o.Registries {
		cfg.Registries = append(cfg.Registries, containerd.Registry{
			Host: r.Host, Mirrors: r.Mirrors, PlainHTTP: r.PlainHTTP, Username: r.Username, Password: r.Password.Reveal(),
		})
	}
	return cfg
}

// lateGuard is the guard's process, started when the first workload needs it:
// most nodes never run an exclusive one.
type lateGuard struct {
	dir string

	mu     sync.Mutex // guards client
	client *guard.Client
}

// Set is driver.Guard's.
func (g *lateGuard) Set(ctx context.Context, k wire.Key, t runtime.Target, until time.Time) error {
	c, err := g.open(ctx)
	if err != nil {
		return err
	}
	return c.Set(ctx, k, t, until)
}

// Lift is driver.Guard's. A guard of an earlier life may hold the key.
func (g *lateGuard) Lift(ctx context.Context, k wire.Key) error {
	if _, err := os.Stat(g.dir); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	c, err := g.open(ctx)
	if err != nil {
		return err
	}
	return c.Lift(ctx, k)
}

func (g *lateGuard) open(ctx context.Context) (*guard.Client, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.client != nil {
		return g.client, nil
	}
	c, err := guard.Ensure(ctx, g.dir, "")
	if err != nil {
		return nil, err
	}
	g.client = c
	return c, nil
}

// Close lets go of the guard, which goes on with what it holds.
func (g *lateGuard) Close() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.client == nil {
		return nil
	}
	return g.client.Close()
}
