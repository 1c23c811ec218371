// Package containerd runs workloads as containers with containerd 1.6 or later, in a namespace
// of its own. It takes an image from archives in directories that the node's operator
// configures, from the namespace, or from a registry, in this order. It does not fetch an image
// again that it has under the same reference.
//
// A workload runs in a shim: it outlives the node engine and containerd. Its identity and spec
// are stored with its container, so that a new engine finds all workloads. A container has a
// network of its own, with loopback only until the netmanager connects it, or the host's network
// if the operator configures that.
package containerd

import (
	"cmp"
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
)

// Options are the settings of the node's operator. Zero values mean the defaults.
type Options struct {
	Address          string             `yaml:"address" usage:"containerd's socket"`
	Namespace        string             `yaml:"namespace" usage:"containerd's namespace for our workloads, one for each engine on the machine"`
	Root             string             `yaml:"root" usage:"containerd's root directory, whose disk is offered and not filled; empty: what containerd reports"`
	Snapshotter      string             `yaml:"snapshotter" usage:"containerd's snapshotter; empty: overlayfs"`
	Network          string             `yaml:"network" usage:"overlay (addresses and names by the netmanager), none (loopback only) or host; empty: overlay if netmanager.socket is set, else none"`
	ImageDirs        []string           `yaml:"image_dirs" usage:"directories of OCI archives (*.tar), which are used before registries"`
	OpenFiles        int64              `yaml:"open_files" usage:"files that each process of a container may have open (RLIMIT_NOFILE, soft and hard); 0: 1048576"`
	CgroupMount      bool               `yaml:"cgroup_mount" usage:"show containers their own control group, read-only, at /sys/fs/cgroup"`
	HighWater        int                `yaml:"high_water" usage:"percentage of containerd's disk in use above which unused images are deleted; 0: 85"`
	Registries       []Registry         `yaml:"registries"`
	RegistryNetworks []string           `yaml:"registry_networks" usage:"networks (CIDR) besides the public ones where registries may be that are not named; empty: none. A service names its registry and can reach any host in them, but no address of this machine unless it is listed by itself (10.1.0.5/32)"`
	Handlers         map[string]Handler `yaml:"handlers"`
}

// Registry configures how to fetch images from a registry. It is set in the file only.
type Registry struct {
	Host      string        `yaml:"host"`       // as in references, "registry.example:5000"
	Mirrors   []string      `yaml:"mirrors"`    // tried first, in this order: "https://mirror.example"
	PlainHTTP bool          `yaml:"plain_http"` // the registry itself uses HTTP
	Username  string        `yaml:"username"`
	Password  daemon.Secret `yaml:"password"`
}

// Handler runs a further value of `virtualization`. It is set in the file only.
type Handler struct {
	Runtime string `yaml:"runtime"` // "runc", "runsc", "kata" or "io.containerd.NAME.vN"
	Binary  string `yaml:"binary"`  // if it is not the shim's default, such as the path of crun
}

// Networks returns the parsed RegistryNetworks.
func (o Options) Networks() ([]netip.Prefix, error) {
	return daemon.Networks("containerd.registry_networks", o.RegistryNetworks)
}

// Config configures the runtime. Zero values mean the defaults.
type Config struct {
	Options
	StateDir        string  // required; absolute, because files in it are mounted into containers
	Devices         Devices // nil: workloads with devices are rejected
	AllowPrivileged bool
	CgroupParent    string        // default "/treeline/<namespace>"
	UnusedFor       time.Duration // how long an image must be unused before it is removed; default 1 h
	CallTimeout     time.Duration // of one call of containerd; default 15 s

	networks []netip.Prefix // the parsed RegistryNetworks
	appArmor string         // the profile of containers; empty: none, see loadAppArmor
}

const (
	maxPIDs     = 512              // processes and threads of a workload
	logLimit    = 16 << 20         // bytes of each workload's log
	pullTimeout = 10 * time.Minute // of fetching one image
)

// Devices adds devices to containers.
type Devices interface {
	// Inject changes the specification so that the container has the devices and its
	// cgroup allows them. It fails with ErrNotFound if a device does not exist.
	Inject(s *specs.Spec, ids []string) error
}

func (c Config) withDefaults() (Config, error) {
	c.Address = cmp.Or(c.Address, "/run/containerd/containerd.sock")
	c.Namespace = cmp.Or(c.Namespace, "treeline")
	c.Network = cmp.Or(c.Network, api.NetworkNone)
	c.CgroupParent = cmp.Or(c.CgroupParent, filepath.Join("/treeline", c.Namespace))
	c.Snapshotter = cmp.Or(c.Snapshotter, defaultSnapshotter)
	c.OpenFiles = cmp.Or(c.OpenFiles, 1<<20)
	c.HighWater = cmp.Or(c.HighWater, 85)
	c.UnusedFor = cmp.Or(c.UnusedFor, time.Hour)
	c.CallTimeout = cmp.Or(c.CallTimeout, 15*time.Second)
	if !filepath.IsAbs(c.StateDir) {
		return c, fmt.Errorf("state directory %q: want an absolute path: %w", c.StateDir, api.ErrInvalid)
	}
	if all := []string{api.NetworkNone, api.NetworkHost, api.NetworkOverlay}; !slices.Contains(all, c.Network) {
		return c, fmt.Errorf("network %q: want one of %q: %w", c.Network, all, api.ErrInvalid)
	}
	var err error
	c.networks, err = c.Networks()
	return c, err
}

const defaultSnapshotter = "overlayfs"

const (
	runcV2  = "io.containerd.runc.v2"
	runscV1 = "io.containerd.runsc.v1" // gVisor
)

var shortNames = map[string]string{"runc": runcV2, "runsc": runscV1, "kata": "io.containerd.kata.v2"}

// handler returns the handler of virtualization v, with the runtime's full name.
func (c Config) handler(v string) (Handler, bool) {
	h, ok := c.Handlers[v]
	if !ok && (v == "container" || v == "docker") {
		h, ok = Handler{Runtime: runcV2}, true
	}
	if full, short := shortNames[h.Runtime]; short {
		h.Runtime = full
	}
	return h, ok
}

// mounts reports whether containers can have volumes. Only runc is known to mount them.
func (c Config) mounts() bool {
	h, ok := c.handler("container")
	return ok && h.Runtime == runcV2
}

// installed returns the values of `virtualization` whose shim is installed.
func (c Config) installed() []string {
	names := []string{"container", "docker"}
	for n := range c.Handlers {
		names = append(names, n)
	}
	slices.Sort(names)
	return slices.DeleteFunc(slices.Compact(names), func(n string) bool {
		h, _ := c.handler(n)
		_, err := exec.LookPath(shim(h.Runtime))
		return err != nil
	})
}

// shim returns the program that containerd starts for a runtime: containerd-shim-runc-v2 for
// io.containerd.runc.v2.
func shim(name string) string {
	parts := strings.Split(name, ".")
	if filepath.IsAbs(name) || len(parts) < 2 {
		return name
	}
	return "containerd-shim-" + strings.Join(parts[len(parts)-2:], "-")
}
