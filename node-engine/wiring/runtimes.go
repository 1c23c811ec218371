package wiring

import (
	"bytes"
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
	csidriver "github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/node-engine/clusterlink"
	"github.com/treeline-edge/treeline/node-engine/csi"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
	"github.com/treeline-edge/treeline/node-engine/runtime/process"
	"github.com/treeline-edge/treeline/node-engine/runtime/qemu"
	"github.com/treeline-edge/treeline/node-engine/runtime/several"
	"github.com/treeline-edge/treeline/node-engine/usage"
	"github.com/treeline-edge/treeline/node-engine/volume"
)

var runtimes = []string{"containerd", "process", "qemu"}

// names returns the runtimes in the value of runtime, of which there may be several.
func (c Config) names() []string { return strings.Split(c.runtimeName(), ",") }

// openRuntime opens the runtimes that are configured, or detected. The caller closes it with
// closeRuntime.
func openRuntime(c Config, found *devices.Devices, log *slog.Logger) (rt runtime.Runtime, err error) {
	if c.Fake != nil {
		return c.Fake, nil
	}
	var members []several.Member
	defer func() {
		for _, m := range members {
			if err != nil {
				_ = m.Close()
			}
		}
	}()
	images := func(context.Context, runtime.Workload) (runtime.Artifact, error) {
		return runtime.Artifact{}, errNoImages
	}
	for _, name := range runtimes { // containerd first: it fetches images for others
		if !slices.Contains(c.names(), name) {
			continue
		}
		var m several.Member
		switch name {
		case "containerd":
			cfg := c.containerdConfig()
			cfg.Devices = found
			var r *containerd.Runtime
			if r, err = containerd.New(cfg, log); err == nil {
				m, images = several.Member{Runtime: r}, r.Artifact
			}
		case "process":
			var r *process.Runtime
			if r, err = process.New(process.Config{Options: c.Process, StateDir: filepath.Join(c.dataDir(), "process")}); err == nil {
				m = several.Member{Runtime: r, Virtualizations: []string{process.Virtualization}, Has: r.Has}
			}
		case "qemu":
			var r *qemu.Runtime
			r, err = qemu.New(qemu.Config{
				Options: c.QEMU, StateDir: filepath.Join(c.dataDir(), "qemu"), Network: c.network() == api.NetworkOverlay,
				Artifact: images, Client: c.containerdConfig().Client,
			}, log)
			if err == nil {
				m = several.Member{Runtime: r, Virtualizations: qemu.Virtualizations, Has: r.Has}
			}
		}
		if err != nil {
			return nil, fmt.Errorf("open the runtime %q: %w", name, err)
		}
		members = append(members, m)
	}
	if len(members) == 1 {
		return members[0].Runtime, nil
	}
	return several.New(members...), nil
}

var errNoImages = runtime.Errorf(api.ReasonNoRuntime, "images of registries need containerd among this node's runtimes: %w", api.ErrUnavailable)

// features returns the features of SLAs that the node supports, sorted.
func features(rt runtime.Runtime) []string {
	out := []string{api.FeatureDeadline, api.FeatureHealth}
	if _, ok := rt.(runtime.Executor); ok {
		out = append(out, api.FeatureHealthCommand)
	}
	if _, ok := rt.(runtime.Attacher); ok {
		out = append(out, api.FeatureInput)
	}
	if usage.Supported(rt) {
		out = append(out, api.FeatureScale, api.FeatureRequests)
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
	if c.Fake != nil || !slices.Contains(c.names(), "containerd") {
		return nil, nil
	}
	return volume.Open(ctx, c.volumesDir(), log)
}

// openCSI opens the CSI volumes of a node whose runtime supports volumes and that has drivers or had some,
// otherwise it returns nil.
func (c Config) openCSI(o csi.Options) (*csi.Manager, error) {
	sockets, err := csidriver.ParseAll(c.CSI)
	if err != nil || c.Fake != nil || !slices.Contains(c.names(), "containerd") {
		return nil, err
	}
	if o.Dir, err = filepath.Abs(filepath.Join(c.Data, "csi")); err != nil {
		return nil, err
	}
	if _, err := os.Stat(o.Dir); len(sockets) == 0 && errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	secrets, err := csidriver.ParseSecrets(c.CSISecrets, sockets)
	if err != nil {
		return nil, err
	}
	if o.Drivers, err = csidriver.OpenAll(sockets, secrets, c.CSITimeout); err != nil {
		return nil, err
	}
	o.Ephemeral = c.CSIEphemeral
	return csi.Open(o)
}

// dataDir returns the absolute path of the data directory.
func (c Config) dataDir() string {
	if abs, err := filepath.Abs(c.Data); err == nil {
		return abs
	}
	return c.Data
}

// containerdConfig returns the runtime's configuration, without the devices.
func (c Config) containerdConfig() containerd.Config {
	cfg := containerd.Config{Options: c.Containerd, StateDir: filepath.Join(c.dataDir(), "containerd"), AllowPrivileged: c.Privileged}
	cfg.Network = c.network()
	return cfg
}

// runtimeFile has the names of the runtimes with which the node joined, and of those added since.
const runtimeFile = "runtime"

// checkRuntimes returns the first error in a list of runtimes.
func checkRuntimes(list string) error {
	all := strings.Split(list, ",")
	for i, name := range all {
		switch {
		case !slices.Contains(runtimes, name):
			return fmt.Errorf("%q, want some of %s, separated by commas: %w", list, strings.Join(runtimes, ", "), api.ErrInvalid)
		case slices.Contains(all[:i], name):
			return fmt.Errorf("%q has %s twice: %w", list, name, api.ErrInvalid)
		}
	}
	return nil
}

// savedRuntime returns the runtimes of this node: those with which it joined, and those that the
// configuration adds. Without one of its runtimes the node would not see its workloads, and would report
// that they are gone. auto chooses once, before the node joins.
//
// A node that joined under a release without the file has the state directories of the runtimes
// that it used. If it has several, auto chooses containerd.
func (c Config) savedRuntime(dir *os.Root) (string, error) {
	kept, err := dir.ReadFile(runtimeFile)
	saved := strings.TrimSpace(string(kept))
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
	}
	if err := checkRuntimes(saved); err != nil {
		return "", fmt.Errorf("%s: %w", filepath.Join(c.Data, runtimeFile), err)
	}
	if c.Runtime == "auto" {
		return saved, nil
	}
	for name := range strings.SplitSeq(saved, ",") {
		if !slices.Contains(c.names(), name) {
			return "", fmt.Errorf("runtime: %q is configured, but this node joined with %s, whose workloads %[1]q does not see; set runtime to %[2]s or add to it, or drain the node and remove %[3]s: %[4]w",
				c.Runtime, saved, filepath.Join(c.Data, runtimeFile), api.ErrConflict)
		}
	}
	return c.Runtime, nil
}

// saveRuntime saves the runtimes of a node that has joined.
func (c Config) saveRuntime(dir *os.Root) error {
	text := []byte(c.Runtime + "\n")
	if had, err := dir.ReadFile(runtimeFile); err == nil && bytes.Equal(had, text) {
		return nil
	}
	if err := ca.WriteFile(dir, runtimeFile, text, 0o600); err != nil {
		return fmt.Errorf("save the runtime of this node: %w", err)
	}
	return nil
}
