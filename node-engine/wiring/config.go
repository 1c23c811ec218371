// Package wiring builds a node engine from its credentials, its store, its core with the loop that
// owns it, the runtime and its driver, and the link to its cluster. It makes no decisions.
//
//	err := wiring.Run(ctx, wiring.Defaults(), log)
package wiring

import (
	"fmt"
	"net"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	csidriver "github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/node-engine/devices"
	noderuntime "github.com/treeline-edge/treeline/node-engine/runtime"
	"github.com/treeline-edge/treeline/node-engine/runtime/containerd"
	"github.com/treeline-edge/treeline/node-engine/runtime/process"
	"github.com/treeline-edge/treeline/node-engine/runtime/qemu"
)

type Config struct {
	Data  string        `yaml:"data" usage:"directory for credentials and for the store"`
	Token daemon.Secret `yaml:"token" usage:"join token, for the first start"`
	// Cluster has further addresses of the cluster.
	Cluster []string `yaml:"cluster" usage:"https://host:port of replicas of the cluster, which are used besides the address in the join token and those that the cluster sends"`

	Name string `yaml:"name" usage:"the node's id, unless its cluster has a node of this name; empty: the cluster assigns one"`

	Runtime    string             `yaml:"runtime" usage:"auto, or one or several of containerd, process and qemu, separated by commas (containerd,qemu); auto is containerd if its socket exists when the node joins, else process, and does not change later; a runtime can be added later, and removed when the node is drained"`
	Containerd containerd.Options `yaml:"containerd"`
	Process    process.Options    `yaml:"process"`
	QEMU       qemu.Options       `yaml:"qemu"`
	Netmanager NetmanagerConfig   `yaml:"netmanager"`

	CPUs           float64       `yaml:"cpus" usage:"vCPUs to offer; 0: what the machine has"`
	Memory         int64         `yaml:"memory" usage:"MiB of memory to offer; 0: what the machine has"`
	Storage        int64         `yaml:"storage" usage:"MiB of disk to offer; 0: the runtime's disk less storage_reserve. It is reserved when an instance is placed"`
	Volumes        string        `yaml:"volumes" usage:"directory of services' volumes, on the disk that is offered; empty: volumes in the data directory"`
	CSI            []string      `yaml:"csi" usage:"CSI drivers for services' volumes, as NAME=/path/of/its.sock with the driver's node service; the cluster has the drivers in its configuration, too"`
	CSIEphemeral   []string      `yaml:"csi_ephemeral" usage:"names of drivers in csi of which services may have volumes of type csi_ephemeral: every tenant with services here chooses their parameters"`
	CSISecrets     []string      `yaml:"csi_secrets" usage:"files with the secrets of CSI drivers, as NAME=/path/of/its.yaml, read at each call: a map of calls (CreateVolume, NodeStageVolume, …), or of all for the others, to keys and strings; only their owner may read them"`
	CSITimeout     time.Duration `yaml:"csi_timeout" usage:"how long a CSI driver may take to answer one call; 0: 30s"`
	StorageReserve int64         `yaml:"storage_reserve" usage:"MiB of that disk that are not offered; 0: a tenth, at most 10 GiB"`
	Bandwidth      string        `yaml:"bandwidth" usage:"Mbit/s to offer as IN/OUT (100/20), or one number for both; empty: the speed of the default route's interface; where its driver does not say, bandwidth is unknown and no service that reserves some is placed here"`
	Publish        string        `yaml:"publish" usage:"ports of this machine that workloads may publish: ports and ranges (80,443,1024-65535), or none. Ports that the machine itself uses are never published"`
	DeviceDirs     []string      `yaml:"device_dirs" usage:"directories of CDI specifications (JSON, YAML), whose devices are offered"`
	TestDevices    []string      `yaml:"test_devices" usage:"devices without hardware, for tests: test.treeline.dev/CLASS=COUNT; those of the classes gpu and tpu count as such"`
	Privileged     bool          `yaml:"privileged" usage:"allow privileged workloads, which have full control of this machine"`
	Labels         []string      `yaml:"labels" usage:"labels of the node (key=value), which constraints select"`
	Addons         []string      `yaml:"addons" usage:"names of addons that the machine offers, for services that need them"`
	Address        string        `yaml:"address" usage:"IP address or name of this machine at which published ports are reached, for people who may see nodes; empty: its own address on the way to the cluster"`
	Location       string        `yaml:"location" usage:"the machine's latitude,longitude in degrees (48.14,11.58); empty: unknown"`
	Areas          []string      `yaml:"areas" usage:"names of places that the machine is in and its country's code (munich, bavaria, de); case does not matter"`

	FilesDir string `yaml:"files_dir" usage:"directory in memory (tmpfs) for configs and secrets of workloads; the engine uses one below it"`

	ListenStatus string `yaml:"listen_status" usage:"where /livez, /readyz, /metrics and /version are served: a loopback host:port, or the path of a unix socket; \"data\" is status.sock in the data directory, \"off\" nowhere"`

	Log daemon.Log `yaml:",inline"`

	// File is the configuration file, whose secrets a purge deletes; empty: none.
	File string `yaml:"-"`

	// Fake is a runtime for tests, which the engine does not close; nil: none.
	Fake noderuntime.Runtime `yaml:"-"`
}

// NetmanagerConfig is about the machine's netmanager.
type NetmanagerConfig struct {
	Socket string `yaml:"socket" usage:"the netmanager's unix socket, /run/treeline/net.sock where it is installed; empty: this node has no overlay network"`
}

var hostName = regexp.MustCompile(`^[A-Za-z0-9]([-.A-Za-z0-9]{0,251}[A-Za-z0-9])?$`)

// Defaults returns the configuration without a file, environment or flags.
func Defaults() Config {
	return Config{
		Data: "/var/lib/treeline/node", Runtime: "auto", ListenStatus: "data", FilesDir: "/run/treeline/files", DeviceDirs: devices.Dirs, Publish: api.DefaultPublish,
		Containerd: containerd.Options{Address: "/run/containerd/containerd.sock", Namespace: "treeline", CgroupMount: true},
		Log:        daemon.DefaultLog(),
	}
}

// Validate returns the first error in the configuration (ErrInvalid).
func (c Config) Validate() error {
	switch n := c.Containerd.OpenFiles; {
	case c.Data == "":
		return daemon.Invalid("data", "no directory is given")
	case c.Name != "" && !api.ValidMachineName(c.Name):
		return daemon.Invalid("name", "%q is no DNS label in lower case", c.Name)
	case !slices.Equal(replicas.Clean(c.Cluster), c.Cluster):
		return daemon.Invalid("cluster", "%q: want at most %d URLs https://host:port, each once, without a path", c.Cluster, replicas.Max)
	case !slices.Contains([]string{api.NetworkOverlay, api.NetworkHost, api.NetworkNone}, c.network()):
		return daemon.Invalid("containerd.network", "%q, want overlay, none or host", c.Containerd.Network)
	case c.Containerd.Network == api.NetworkOverlay && c.Netmanager.Socket == "":
		return daemon.Invalid("containerd.network", "overlay needs netmanager.socket")
	case n != 0 && (n < 64 || n > 1<<30):
		return daemon.Invalid("containerd.open_files", "%d, want 64 to 1073741824, or 0 for 1048576", n)
	}
	if c.Address != "" && net.ParseIP(c.Address) == nil && !hostName.MatchString(c.Address) {
		return daemon.Invalid("address", "%q is neither an IP address nor a host name; it has no port", c.Address)
	}
	sockets, err := csidriver.ParseAll(c.CSI)
	if err != nil {
		return daemon.Invalid("csi", "%v", err)
	}
	for _, name := range c.CSIEphemeral {
		if sockets[name] == "" {
			return daemon.Invalid("csi_ephemeral", "%q is not the name of a driver in csi", name)
		}
	}
	if _, err := csidriver.ParseSecrets(c.CSISecrets, sockets); err != nil {
		return daemon.Invalid("csi_secrets", "%v", err)
	}
	if c.CSITimeout < 0 || c.CSITimeout > csidriver.MaxTimeout {
		return daemon.Invalid("csi_timeout", "%s, want 0s to %s", c.CSITimeout, csidriver.MaxTimeout)
	}
	if c.Runtime != "auto" {
		if err := checkRuntimes(c.Runtime); err != nil {
			return fmt.Errorf("runtime: %w", err)
		}
	}
	if err := c.QEMU.Validate(); err != nil {
		return fmt.Errorf("qemu: %w", err)
	}
	for key, path := range map[string]string{"netmanager.socket": c.Netmanager.Socket, "containerd.root": c.Containerd.Root, "files_dir": c.FilesDir} {
		if path != "" && !strings.HasPrefix(path, "/") {
			return daemon.Invalid(key, "%q is no absolute path", path)
		}
	}
	if _, err := c.Containerd.Networks(); err != nil {
		return err
	}
	if err := c.checkOffer(); err != nil {
		return err
	}
	for _, l := range c.Labels {
		if k, _, ok := strings.Cut(l, "="); !ok || k == "" {
			return daemon.Invalid("labels", "%q is not key=value", l)
		}
	}
	if c.Token != "" {
		if _, err := jointoken.Parse(c.Token.Reveal()); err != nil {
			return fmt.Errorf("token: %w", err)
		}
	}
	if err := daemon.CheckStatus(c.ListenStatus); err != nil {
		return daemon.Invalid("listen_status", "%v", err)
	}
	return nil
}

// network returns the network of containers.
func (c Config) network() string {
	switch {
	case c.Containerd.Network != "":
		return c.Containerd.Network
	case c.Netmanager.Socket != "":
		return api.NetworkOverlay
	}
	return api.NetworkNone
}

// info returns the configured part of the node's info, without its capacity.
func (c Config) info(hostname string) api.NodeInfo {
	info := api.NodeInfo{
		ID: api.NodeID(c.Name), Hostname: hostname, Arch: runtime.GOARCH, OS: runtime.GOOS,
		Privileged: c.Privileged, Version: daemon.Version(), Addons: names(c.Addons), Areas: names(lower(c.Areas)),
	}
	for _, l := range c.Labels {
		k, v, _ := strings.Cut(l, "=")
		if info.Labels == nil {
			info.Labels = map[string]string{}
		}
		info.Labels[k] = v
	}
	info.Address = c.Address
	if g, err := api.ParseGeo(c.Location); err == nil {
		info.Location = &g
	}
	return info
}
