// Package containerd runs workloads as containers by a containerd of version 1.6
// or later, in a namespace of its own. Images come from archives in directories
// that the node's operator names, from the namespace, or from registries, in
// this order; a reference that is already there is not asked for again.
//
// What runs, runs by the shim: neither the end of the node engine nor that of
// containerd ends a workload. A workload's identity and spec are kept beside its
// container, so that a new engine finds all of them. Addresses and networks are
// left to the netmanager: a container has its own network, with loopback only
// until somebody connects it, or the host's where the operator says so.
package containerd

import (
	"fmt"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/treeline-edge/treeline/api"
)

// Networks that a container can have.
const (
	NetworkNone    = api.NetworkNone    // its own, with loopback only
	NetworkHost    = api.NetworkHost    // the machine's
	NetworkOverlay = api.NetworkOverlay // its own, which somebody connects before it starts (runtime.Namespaced)
)

// Config says how containerd is reached and what the node's operator allows.
// Zero values mean the defaults.
type Config struct {
	Address   string // default /run/containerd/containerd.sock
	Namespace string // default "treeline"; one for each engine on the machine
	StateDir  string // for logs; must be given
	// Handlers are the values of `virtualization` besides "container" and "docker",
	// and what runs them: "runc", "runsc", "kata" or a full "io.containerd.NAME.vN".
	Handlers        map[string]Handler
	Devices         Devices // nil: workloads with devices are refused
	Network         string  // NetworkNone (default), NetworkHost or NetworkOverlay
	AllowPrivileged bool
	PIDs            int64  // processes and threads of a workload; default 512
	OpenFiles       int64  // of each process of a workload, soft and hard; default 1048576, and at most what containerd can give
	HideCgroups     bool   // workloads do not see their control group at /sys/fs/cgroup
	LogLimit        int64  // bytes kept of each workload's output; default 16 MiB
	CgroupParent    string // default "/treeline/<namespace>"
	Snapshotter     string // default overlayfs

	ImageDirs  []string   // directories of OCI archives (*.tar)
	Registries []Registry // those that need more than HTTPS without credentials, or lie on private networks
	// RegistryNetworks are networks besides the public ones where any registry may be,
	// its redirects and token servers included.
	RegistryNetworks []netip.Prefix

	ContainerdRoot string        // on the disk that HighWater is about; default: containerd is asked, see Root
	HighWater      int           // percent of that disk; default 85; above it unused images go
	UnusedFor      time.Duration // how long an image must have been unused; default 1 h

	CallTimeout time.Duration // of one exchange with containerd; default 15 s
	PullTimeout time.Duration // of fetching one image; default 10 min

	appArmor string // the profile of containers; empty: none, see loadAppArmor
}

// Devices puts devices into a container.
type Devices interface {
	// Inject changes the specification so that the container has the devices and its
	// cgroup allows them. A device that is not there is api.ErrNotFound.
	Inject(s *specs.Spec, ids []string) error
}

// Handler is what runs a kind of virtualization.
type Handler struct {
	Runtime string // "runc", "runsc", "kata" or "io.containerd.NAME.vN"
	Binary  string // a runtime binary other than the shim's default, such as crun's path
}

// Registry says how images of one registry are fetched.
type Registry struct {
	Host      string   // as in references, "registry.example:5000"
	Mirrors   []string // asked first, in this order: "http://10.0.0.2:5000", "https://mirror.example"
	PlainHTTP bool     // the registry itself speaks HTTP
	Username  string
	Password  string //nolint:gosec // it comes from the operator's file
}

func setDefaults(c *Config) error {
	set := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	set(&c.Address, "/run/containerd/containerd.sock")
	set(&c.Namespace, "treeline")
	set(&c.Network, NetworkNone)
	set(&c.CgroupParent, filepath.Join("/treeline", c.Namespace))
	set(&c.Snapshotter, defaultSnapshotter)
	setDefault(&c.PIDs, 512)
	setDefault(&c.OpenFiles, 1<<20)
	setDefault(&c.LogLimit, 16<<20)
	setDefault(&c.HighWater, 85)
	setDefault(&c.UnusedFor, time.Hour)
	setDefault(&c.CallTimeout, 15*time.Second)
	setDefault(&c.PullTimeout, 10*time.Minute)
	if c.StateDir == "" {
		return fmt.Errorf("containerd runtime: no state directory is given: %w", api.ErrInvalid)
	}
	if all := []string{NetworkNone, NetworkHost, NetworkOverlay}; !slices.Contains(all, c.Network) {
		return fmt.Errorf("containerd runtime: network %q is none of %q: %w", c.Network, all, api.ErrInvalid)
	}
	return nil
}

func setDefault[T int | int64 | time.Duration](v *T, d T) {
	if *v == 0 {
		*v = d
	}
}

const defaultSnapshotter = "overlayfs"

const runcV2 = "io.containerd.runc.v2"

var shortNames = map[string]string{"runc": runcV2, "runsc": "io.containerd.runsc.v1", "kata": "io.containerd.kata.v2"}

// handler is what runs virtualization v, with the runtime's full name.
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

// installed lists what `virtualization` may name and whose shim is there.
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

// shim is the program that containerd starts for a runtime:
// containerd-shim-runc-v2 for io.containerd.runc.v2.
func shim(name string) string {
	if filepath.IsAbs(name) {
		return name
	}
	parts := strings.Split(name, ".")
	if len(parts) < 2 {
		return name
	}
	return "containerd-shim-" + strings.Join(parts[len(parts)-2:], "-")
}
