// Package wiring builds and runs a cluster orchestrator: its store, the core and its loop, its
// certificates, the broker, the port for nodes and the operator, and the connection to the
// root.
//
//	err := wiring.Run(ctx, wiring.Defaults(), log)
package wiring

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/api/replicas"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/uplink"
	"github.com/treeline-edge/treeline/internal/csi"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/identity/jointoken"
	"github.com/treeline-edge/treeline/internal/reach"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/standby"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
)

// Config is the cluster orchestrator's configuration.
type Config struct {
	Data     string        `yaml:"data" usage:"directory for keys and, without a store elsewhere, for the store"`
	Name     string        `yaml:"name" usage:"the cluster's id, which cannot change; required at the first start"`
	Location string        `yaml:"location" usage:"where the cluster is: text for people, or latitude,longitude in degrees, which then also locates nodes that have no location of their own"`
	Token    daemon.Secret `yaml:"token" usage:"the root's join token, for the first start"`
	Root     []string      `yaml:"root" usage:"https://host:port of replicas of the root, which are used besides the address in the join token and those that the root tells"`

	Listen string   `yaml:"listen" usage:"address for nodes and for the operator's API; port 0 selects a free one, see <data>/address"`
	URL    string   `yaml:"url" usage:"https://host:port under which nodes reach the cluster; join tokens contain it. Empty: derived from this machine's address"`
	Names  []string `yaml:"names" usage:"further DNS names and addresses for the server's certificate"`

	InstallDir string `yaml:"install_dir" usage:"directory with the programs that machines which join can install from here: in linux-amd64 and linux-arm64, or directly those of this machine's architecture. They must be of this version. Empty: the directory of this program"`

	Store    daemon.Secret `yaml:"store" usage:"mongodb://… keeps documents there; empty: a file in data"`
	NewStore bool          `yaml:"new_store" usage:"start with an empty store although the keys in data were used with another store, whose content is then lost. For one start"`

	Replica      bool          `yaml:"replica" usage:"share store with other replicas of this cluster, which needs an external broker: one is active at a time, and the others take over when it stops. Each needs the keys of the first one in data"`
	Replicas     []string      `yaml:"replicas" usage:"with replica: https://host:port of all replicas of this cluster, this one included, at most 8. Nodes learn them and use another one when the active one is gone"`
	ReplicaLease time.Duration `yaml:"replica_lease" usage:"with replica: silence of the active replica after which another one takes over; 0: 3s"`
	GossipListen string        `yaml:"gossip_listen" usage:"with replica: address for UDP and TCP at which the replicas of this cluster probe each other, for example :7446. All need it, and treeline get replicas shows them. Without a host, they use an address of this machine. Empty: none"`

	Broker BrokerConfig `yaml:"broker"`

	Network NetworkConfig `yaml:"network"`

	OakestraListen string `yaml:"oakestra_listen" usage:"address at which Oakestra's /api/cluster/status is served over plain HTTP, without sign-in, for the oak CLI, which expects port 10100. Empty: none"`

	CSI         []string      `yaml:"csi" usage:"CSI drivers for services' volumes, as NAME=/path/of/its.sock with the driver's controller; nodes have the drivers in their configuration, too"`
	CSISecrets  []string      `yaml:"csi_secrets" usage:"files with the secrets of CSI drivers, as NAME=/path/of/its.yaml, read at each call: a map of calls (CreateVolume, NodeStageVolume, …), or of all for the others, to keys and strings; only their owner may read them"`
	CSITimeout  time.Duration `yaml:"csi_timeout" usage:"how long a CSI driver may take to answer one call; 0: 30s"`
	DetachAfter time.Duration `yaml:"csi_detach_after" usage:"how long a CSI volume stays attached to a node that is silent, after its dead time, before it is attached elsewhere: the node unmounts it meanwhile; longer than it takes to write back what its memory caches"`

	Prometheus PrometheusConfig `yaml:"prometheus"`

	Scheduler    string         `yaml:"scheduler" usage:"what ranks the nodes that pass the filters: rom, ldp, spread, binpack, wasm:/path/to/module, or an http:// or https:// URL"`
	Offer        OfferConfig    `yaml:"offer"`
	Workload     WorkloadConfig `yaml:"workload"`
	NodeCaps     NodeCapsConfig `yaml:"node_caps"`
	Probe        ProbeConfig    `yaml:"probe"`
	Preempt      bool           `yaml:"preempt" usage:"let an instance that no node can take preempt instances of lower priority"`
	MovesPerHour int            `yaml:"moves_per_hour" usage:"how many times an hour one instance may move because its node violates its SLA"`

	Beat  time.Duration `yaml:"beat" usage:"interval of a node's heartbeats; 0: 2.5s"`
	Lease time.Duration `yaml:"lease" usage:"how long a node may run an exclusive instance without hearing from the cluster; 0: 5s"`
	Dead  time.Duration `yaml:"dead" usage:"silence of a node after which its instances are placed elsewhere; 0: 7s"`

	Snapshot snapshot.Config `yaml:"snapshot"`

	CertLife time.Duration `yaml:"cert_life" usage:"how long the certificates of nodes and of the cluster's servers last; each is renewed at two thirds of its life. 0: 30 days, which is the maximum"`

	MaxNodes      int           `yaml:"max_nodes" usage:"maximum number of concurrent connections of nodes"`
	OperatorToken daemon.Secret `yaml:"operator_token" usage:"the operator's token; empty: generated at the first start, see <data>/operator-token"`

	Log daemon.Log `yaml:",inline"`
}

// PrometheusConfig is the Prometheus server that evaluates the expressions by which services scale.
type PrometheusConfig struct {
	URL   string `yaml:"url" usage:"http(s)://host:port of the Prometheus server on which scale.prometheus of services is evaluated; empty: the cluster takes no such services"`
	Label string `yaml:"label" usage:"label whose value is the tenant in all series of that server. It is added to every selector of an expression, so that a tenant reads its own series only"`
}

func (c PrometheusConfig) check() error {
	if c.URL != "" {
		if u, err := url.Parse(c.URL); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || u.RawQuery != "" || u.Fragment != "" {
			return daemon.Invalid("prometheus.url", "%q is not http://host:port or https://host:port", c.URL)
		}
	}
	for i, r := range c.Label {
		if r != '_' && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9' || i == 0) {
			return daemon.Invalid("prometheus.label", "%q is not the name of a label: letters, digits and _, not a digit first", c.Label)
		}
	}
	if c.Label == "" || strings.HasPrefix(c.Label, "__") {
		return daemon.Invalid("prometheus.label", "%q cannot tell tenants apart: use the name of a label, such as tenant", c.Label)
	}
	return nil
}

// BrokerConfig selects the broker between the cluster and its nodes.
type BrokerConfig struct {
	URL   []string `yaml:"url" usage:"mqtts://host:port of an external broker, or of several with the same configuration: the cluster is connected to all, and a node to one that answers. Empty: the embedded one"`
	Nodes []string `yaml:"nodes" usage:"mqtts://host:port under which nodes reach each of these brokers, in the same order; empty: as url"`
	Next  string   `yaml:"next" usage:"where nodes will find the broker after a planned switch: mqtts://host:port, or embedded. Nodes receive it now and confirm it; see docs/how-to/operator.md"`
}

// now returns the current brokers as nodes know them.
func (b BrokerConfig) now() []string {
	switch {
	case len(b.Nodes) > 0:
		return b.Nodes
	case len(b.URL) > 0:
		return b.URL
	}
	return []string{wire.EmbeddedBroker}
}

// known returns the brokers that are sent to nodes: the current ones, and the next one if any.
func (b BrokerConfig) known() []string {
	if b.Next == "" || slices.Contains(b.now(), b.Next) {
		return b.now()
	}
	return append(slices.Clone(b.now()), b.Next)
}

// external reports whether the current or the next broker is external. An external broker
// needs certificates in files.
func (b BrokerConfig) external() bool {
	return len(b.URL) > 0 || b.Next != "" && b.Next != wire.EmbeddedBroker
}

// NetworkConfig configures the overlay network.
type NetworkConfig struct {
	Relay       string        `yaml:"relay" usage:"host:port under which nodes, and those of other clusters, reach this cluster's relay (UDP, and TLS where UDP is blocked). Empty: that of url; off: no relay, and nodes behind NATs may not reach each other"`
	Unencrypted []string      `yaml:"unencrypted" old:"clear" usage:"networks (10.1.0.0/16, …) on which packets between nodes are not encrypted"`
	Interest    time.Duration `yaml:"interest" usage:"lifetime of a node's subscription that is not renewed; 0: 10m"`
}

// noRelay is the value of NetworkConfig.Relay that turns the relay off.
const noRelay = "off"

func (n NetworkConfig) unencrypted() ([]netip.Prefix, error) {
	return daemon.Networks("network.unencrypted", n.Unencrypted)
}

func Defaults() Config {
	return Config{
		Data: "/var/lib/treeline/cluster", Listen: ":7444", MaxNodes: 10_000, DetachAfter: time.Minute, Log: daemon.DefaultLog(),
		Scheduler: rom.Plugin{}.Name(), Offer: OfferConfig{Share: 1, Detail: uplink.DetailFull}, MovesPerHour: 4,
		Workload: WorkloadConfig{Memory: 16, VCPUs: 0.01, MemoryLimit: 512, VCPUsLimit: 1},
		NodeCaps: NodeCapsConfig{Privileged: privilegedExisting}, Prometheus: PrometheusConfig{Label: "tenant"},
	}
}

// Validate returns ErrInvalid for the first invalid setting.
func (c Config) Validate() error {
	if c.Data == "" {
		return daemon.Invalid("data", "must name a directory")
	}
	if c.Name != "" && !api.ValidMachineName(c.Name) {
		return daemon.Invalid("name", "%q is not a DNS label in lower case", c.Name)
	}
	if c.Token != "" {
		if _, err := jointoken.Parse(c.Token.Reveal()); err != nil {
			return fmt.Errorf("token: %w", err)
		}
	}
	if good := replicas.Clean(c.Root); !slices.Equal(good, c.Root) {
		return daemon.Invalid("root", "%q: want at most %d URLs https://host:port, each once, without a path", c.Root, replicas.Max)
	}
	if c.URL != "" && !reach.Valid(c.URL) {
		return daemon.Invalid("url", "%q is not https://host:port", c.URL)
	}
	if err := cmp.Or(daemon.CheckListen(c.Listen), daemon.CheckStore(c.Store), c.Broker.validate(), c.validatePlacement()); err != nil {
		return err
	}
	if err := c.replicas().Validate(); err != nil {
		return err
	}
	if c.Replica && (len(c.Broker.URL) == 0 || slices.Contains(c.Broker.known(), wire.EmbeddedBroker)) {
		return daemon.Invalid("replica", "needs an external broker: the embedded one ends with the active replica. Set broker.url to mqtts://host:port of a broker that all replicas and nodes reach")
	}
	if c.OakestraListen != "" {
		if err := daemon.CheckListen(c.OakestraListen); err != nil {
			return err
		}
	}
	if r := c.Network.Relay; r != "" && r != noRelay {
		if host, port, err := net.SplitHostPort(r); err != nil || host == "" || port == "" {
			return daemon.Invalid("network.relay", "%q is not host:port or %s", r, noRelay)
		}
	}
	if _, err := c.Network.unencrypted(); err != nil {
		return err
	}
	if c.Network.Interest != 0 && c.Network.Interest < 10*time.Second {
		return daemon.Invalid("network.interest", "%s is too short for nodes to renew their subscriptions; at least 10s", c.Network.Interest)
	}
	if err := c.Prometheus.check(); err != nil {
		return err
	}
	sockets, err := csi.ParseAll(c.CSI)
	if err != nil {
		return daemon.Invalid("csi", "%v", err)
	}
	if _, err := csi.ParseSecrets(c.CSISecrets, sockets); err != nil {
		return daemon.Invalid("csi_secrets", "%v", err)
	}
	if c.CSITimeout < 0 || c.CSITimeout > csi.MaxTimeout {
		return daemon.Invalid("csi_timeout", "%s, want 0s to %s", c.CSITimeout, csi.MaxTimeout)
	}
	if c.DetachAfter < 0 || c.DetachAfter > maxDetachAfter {
		return daemon.Invalid("csi_detach_after", "%s, want 0s to %s", c.DetachAfter, maxDetachAfter)
	}
	if c.Beat < 0 || c.Lease < 0 || c.Dead < 0 {
		return daemon.Invalid("beat, lease, dead", "%s, %s, %s, must not be negative", c.Beat, c.Lease, c.Dead)
	}
	beat := cmp.Or(c.Beat, 2500*time.Millisecond)
	lease, dead := cmp.Or(c.Lease, 5*time.Second), cmp.Or(c.Dead, 7*time.Second)
	if lease < beat+beat/2 {
		return daemon.Invalid("lease", "%s, want at least 1.5 times beat, which is %s, because a heartbeat may be late", lease, beat)
	}
	// Clocks drift, and killing a workload takes time (see cluster.Config).
	if least := lease + lease/10 + time.Second; dead < least {
		return daemon.Invalid("dead", "%s is too close to the lease of %s: an exclusive instance could run twice; at least %s", dead, lease, least)
	}
	if err := c.Snapshot.Validate(); err != nil {
		return err
	}
	if c.CertLife != 0 && (c.CertLife < 5*time.Second || c.CertLife > ca.LeafLife) {
		return daemon.Invalid("cert_life", "%s, want 5s to %s", c.CertLife, ca.LeafLife)
	}
	if c.MaxNodes < 1 {
		return daemon.Invalid("max_nodes", "%d, want at least 1", c.MaxNodes)
	}
	if t := c.OperatorToken.Reveal(); t != "" && len(t) < minOperatorToken {
		return daemon.Invalid("operator_token", "has %d characters, want at least %d", len(t), minOperatorToken)
	}
	return nil
}

func (c Config) replicas() standby.Config {
	return standby.Config{Replica: c.Replica, Store: c.Store, Replicas: c.Replicas, Lease: c.ReplicaLease, Gossip: c.GossipListen}
}

func (b BrokerConfig) validate() error {
	var next []string
	if b.Next != "" && b.Next != wire.EmbeddedBroker {
		next = []string{b.Next}
	}
	for _, k := range []struct {
		key  string
		urls []string
	}{{"url", b.URL}, {"nodes", b.Nodes}, {"next", next}} {
		for i, u := range k.urls {
			if _, err := brokerAddr(u); err != nil {
				return fmt.Errorf("broker.%s: %w", k.key, err)
			}
			if slices.Contains(k.urls[:i], u) {
				return daemon.Invalid("broker."+k.key, "%q is there twice", u)
			}
		}
	}
	if len(b.Nodes) > 0 && len(b.Nodes) != len(b.URL) {
		return daemon.Invalid("broker.nodes", "%d addresses for the %d in broker.url, want one for each", len(b.Nodes), len(b.URL))
	}
	if b.Next != "" && slices.Contains(b.now(), b.Next) {
		return daemon.Invalid("broker.next", "%q is where the broker is now", b.Next)
	}
	if all := b.known(); len(all) > wire.MaxBrokers {
		return daemon.Invalid("broker", "%d brokers, want at most %d with broker.next", len(all), wire.MaxBrokers)
	}
	return nil
}

func (c Config) core(info api.ClusterInfo, seed []byte, relay string, out *client.Scheduler) cluster.Config {
	unencrypted, _ := c.Network.unencrypted() // validated
	conf := cluster.Config{
		Seed: seed, Relay: relay, Unencrypted: unencrypted, Interest: c.Network.Interest,
		ID: info.ID, LocalNumbers: info.LocalNumbers(),
		Timing: wire.Timing{Heartbeat: c.Beat, Lease: c.Lease}, Dead: c.Dead,
		Brokers: c.Broker.known(),
	}
	drivers, _ := csi.ParseAll(c.CSI) // validated
	conf.Prometheus = c.Prometheus.URL != ""
	if conf.DetachAfter = c.DetachAfter; c.DetachAfter == 0 {
		conf.DetachAfter = -1
	}
	conf.CSI = slices.Sorted(maps.Keys(drivers))
	c.placement(&conf, info, out)
	return conf
}

func brokerAddr(text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "mqtts" || u.Hostname() == "" || u.User != nil {
		return "", fmt.Errorf("%q is not mqtts://host:port: %w", text, api.ErrInvalid)
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "8883")), nil
}
