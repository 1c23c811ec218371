// Package wiring puts a node engine together: its credentials, its store, its
// core with the loop that owns it, the runtime and its driver, and the link to
// its cluster. It decides nothing.
//
//	err := wiring.Run(ctx, wiring.Defaults(), log)
package wiring

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/node-engine/devices"
	"github.com/treeline-edge/treeline/node-engine/runtime"
)

// Config is the node engine's configuration.
type Config struct {
	Data  string        `yaml:"data" usage:"directory for credentials and for the store"`
	Token daemon.Secret `yaml:"token" usage:"join token, for the first start"`
	Name  string        `yaml:"name" usage:"the node's id, unless its cluster has a node of this name; empty: the cluster assigns one"`

	Runtime    string           `yaml:"runtime" usage:"auto, containerd or process; auto is containerd if its socket exists when the node joins, and does not change later"`
	Containerd ContainerdConfig `yaml:"containerd"`
	Process    ProcessConfig    `yaml:"process"`
	Netmanager NetmanagerConfig `yaml:"netmanager"`

	CPUs           float64  `yaml:"cpus" usage:"vCPUs to offer; 0: what the machine has"`
	Memory         int64    `yaml:"memory" usage:"MiB of memory to offer; 0: what the machine has"`
	Storage        int64    `yaml:"storage" usage:"MiB of disk to offer; 0: the runtime's disk less storage_reserve. It is reserved when an instance is placed; what instances write is not limited"`
	StorageReserve int64    `yaml:"storage_reserve" usage:"MiB of that disk that are not offered; 0: a tenth, at most 10 GiB"`
	Bandwidth      string   `yaml:"bandwidth" usage:"Mbit/s to offer as IN/OUT (100/20), or one number for both; empty: the speed of the default route's interface; where its driver does not say, bandwidth is unknown and no service that reserves some is placed here"`
	Publish        string   `yaml:"publish" usage:"ports of this machine that workloads may publish: ports and ranges (80,443,1024-65535), or none. Ports that the machine itself uses are never published"`
	DeviceDirs     []string `yaml:"device_dirs" usage:"directories of CDI specifications (JSON, YAML), whose devices are offered"`
	TestDevices    []string `yaml:"test_devices" usage:"devices without hardware, for tests: test.treeline.dev/CLASS=COUNT; those of the classes gpu and tpu count as such"`
	Privileged     bool     `yaml:"privileged" usage:"allow privileged workloads, which have full control of this machine"`
	Labels         []string `yaml:"labels" usage:"labels of the node (key=value), which constraints select"`
	Addons         []string `yaml:"addons" usage:"names of addons that the machine offers, for services that need them"`
	Location       string   `yaml:"location" usage:"the machine's latitude,longitude in degrees (48.14,11.58); empty: unknown"`
	Areas          []string `yaml:"areas" usage:"names of places that the machine is in and its country's code (munich, bavaria, de); case does not matter"`

	ListenStatus string `yaml:"listen_status" usage:"where /livez, /readyz, /metrics and /version are served: a loopback host:port, or the path of a unix socket; \"data\" is status.sock in the data directory, \"off\" nowhere"`

	Log daemon.Log `yaml:",inline"`

	// File is the configuration file, whose secrets a purge deletes; empty: none.
	File string `yaml:"-"`

	// For tests: a runtime that is there already, and is closed by whoever made it.
	Fake runtime.Runtime `yaml:"-"`
}

// ContainerdConfig is about the runtime containerd.
type ContainerdConfig struct {
	Address          string             `yaml:"address" usage:"containerd's socket"`
	Namespace        string             `yaml:"namespace" usage:"containerd's namespace for our workloads, one for each engine on the machine"`
	Root             string             `yaml:"root" usage:"containerd's root directory, whose disk is offered and not filled; empty: what containerd reports"`
	Snapshotter      string             `yaml:"snapshotter" usage:"containerd's snapshotter; empty: overlayfs"`
	Network          string             `yaml:"network" usage:"overlay (addresses and names by the netmanager), none (loopback only) or host; empty: overlay if netmanager.socket is set, else none"`
	ImageDirs        []string           `yaml:"image_dirs" usage:"directories of OCI archives (*.tar), which are used before registries"`
	OpenFiles        int64              `yaml:"open_files" usage:"files that each process of a container may have open (RLIMIT_NOFILE, soft and hard); 0: 1048576"`
	CgroupMount      bool               `yaml:"cgroup_mount" usage:"show containers their own control group, read-only, at /sys/fs/cgroup"`
	HighWater        int                `yaml:"high_water" usage:"percentage of containerd's disk in use above which unused images are deleted; 0: 85"`
	Registries       []RegistryConfig   `yaml:"registries"`
	RegistryNetworks []string           `yaml:"registry_networks" usage:"networks (CIDR) besides the public ones where registries may be that are not named; empty: none. A service names its registry and can reach any host in them, but no address of this machine unless it is listed by itself (10.1.0.5/32)"`
	Handlers         map[string]Handler `yaml:"handlers"`
}

// RegistryConfig says how images of one registry are fetched. In the file alone.
type RegistryConfig struct {
	Host      string        `yaml:"host"`       // as in references, "registry.example:5000"
	Mirrors   []string      `yaml:"mirrors"`    // asked first: "https://mirror.example"
	PlainHTTP bool          `yaml:"plain_http"` // the registry itself speaks HTTP
	Username  string        `yaml:"username"`
	Password  daemon.Secret `yaml:"password"`
}

// Handler is what runs a further value of `virtualization`. In the file alone.
type Handler struct {
	Runtime string `yaml:"runtime"` // "runsc", "kata" or "io.containerd.NAME.vN"
	Binary  string `yaml:"binary"`  // other than the shim's default
}

// NetmanagerConfig is about the machine's netmanager.
type NetmanagerConfig struct {
	Socket string `yaml:"socket" usage:"the netmanager's unix socket, /run/treeline/net.sock where it is installed; empty: this node has no overlay network"`
}

// ProcessConfig is about the runtime process.
type ProcessConfig struct {
	Allow        []string `yaml:"allow" usage:"directories below which programs may be; empty: no program may run"`
	CgroupParent string   `yaml:"cgroup_parent" usage:"cgroup of all workloads, a path of its own for each engine on the machine"`
	UID          int      `yaml:"uid" usage:"user that workloads run as, never root; 0: nobody"`
	GID          int      `yaml:"gid" usage:"group that workloads run as; 0: nogroup"`
}

// Defaults are the configuration without a file, environment or flags.
func Defaults() Config {
	return Config{
		Data: "/var/lib/treeline/node", Runtime: "auto", ListenStatus: "data", DeviceDirs: devices.Dirs, Publish: api.DefaultPublish,
		Containerd: ContainerdConfig{Address: "/run/containerd/containerd.sock", Namespace: "treeline", CgroupMount: true},
		Log:        daemon.DefaultLog(),
	}
}

// Validate reports what cannot work (ErrInvalid).
func (c Config) Validate() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	switch {
	case c.Data == "":
		return bad("data", "a directory is needed")
	case c.Name != "" && !api.ValidMachineName(c.Name):
		return bad("name", "%q is no DNS label in lower case", c.Name)
	case c.Runtime != "auto" && openers[c.Runtime] == nil:
		return bad("runtime", "%q, want auto, %s", c.Runtime, strings.Join(runtimes(), " or "))
	case !slices.Contains([]string{api.NetworkOverlay, api.NetworkHost, api.NetworkNone}, c.network()):
		return bad("containerd.network", "%q, want overlay, none or host", c.Containerd.Network)
	case c.Containerd.Network == api.NetworkOverlay && c.Netmanager.Socket == "":
		return bad("containerd.network", "overlay needs netmanager.socket")
	case c.Netmanager.Socket != "" && !strings.HasPrefix(c.Netmanager.Socket, "/"):
		return bad("netmanager.socket", "%q is no absolute path", c.Netmanager.Socket)
	case c.Containerd.Root != "" && !strings.HasPrefix(c.Containerd.Root, "/"):
		return bad("containerd.root", "%q is no absolute path", c.Containerd.Root)
	}
	if n := c.Containerd.OpenFiles; n != 0 && (n < 64 || n > 1<<30) {
		return bad("containerd.open_files", "%d, want 64 to 1073741824, or 0 for 1048576", n)
	}
	if _, err := c.registryNetworks(); err != nil {
		return err
	}
	if err := c.checkOffer(); err != nil {
		return err
	}
	for _, l := range c.Labels {
		if k, _, ok := strings.Cut(l, "="); !ok || k == "" {
			return bad("labels", "%q is not key=value", l)
		}
	}
	if c.Token != "" {
		if _, err := jointoken.Parse(c.Token.Reveal()); err != nil {
			return fmt.Errorf("token: %w", err)
		}
	}
	if err := daemon.CheckStatus(c.ListenStatus); err != nil {
		return bad("listen_status", "%v", err)
	}
	return nil
}

// registryNetworks are Containerd.RegistryNetworks.
func (c Config) registryNetworks() (out []netip.Prefix, err error) {
	for _, text := range c.Containerd.RegistryNetworks {
		p, err := netip.ParsePrefix(text)
		if err != nil || p != p.Masked() {
			return nil, fmt.Errorf("containerd.registry_networks: %q is not a network such as 10.1.0.0/16: %w", text, api.ErrInvalid)
		}
		out = append(out, p)
	}
	return out, nil
}

// network is what containers are on.
func (c Config) network() string {
	switch {
	case c.Containerd.Network != "":
		return c.Containerd.Network
	case c.Netmanager.Socket != "":
		return api.NetworkOverlay
	}
	return api.NetworkNone
}

// info is what the node says of itself, without what the runtime and the probe say.
func (c Config) info(hostname string) api.NodeInfo {
	info := api.NodeInfo{
		ID: api.NodeID(c.Name), Hostname: hostname, Arch: goarch, OS: goos,
		Privileged: c.Privileged, Version: daemon.Version(),
	}
	for _, l := range c.Labels {
		k, v, _ := strings.Cut(l, "=")
		if info.Labels == nil {
			info.Labels = map[string]string{}
		}
		info.Labels[k] = v
	}
	c.place(&info)
	return info
}
