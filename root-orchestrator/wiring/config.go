// Package wiring builds the root orchestrator: its store, its core with the loop that owns it, its
// certificates and accounts, and the port that serves the API and the link for clusters.
//
//	err := wiring.Run(ctx, wiring.Defaults(), log)
package wiring

import (
	"cmp"
	"fmt"
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/reach"
	"github.com/treeline-edge/treeline/internal/snapshot"
	"github.com/treeline-edge/treeline/internal/standby"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
)

// Config is the root orchestrator's configuration.
type Config struct {
	Data     string        `yaml:"data" usage:"directory for keys and, unless store is set, for the store"`
	Listen   string        `yaml:"listen" usage:"address of the API and of the link for clusters; port 0 selects a free one, see <data>/address"`
	URL      string        `yaml:"url" usage:"https://host:port under which clusters reach the root; join tokens contain it. Empty: an address of this machine"`
	Names    []string      `yaml:"names" usage:"further DNS names and addresses for the server's certificate"`
	Store    daemon.Secret `yaml:"store" usage:"mongodb://… to store documents there; empty: a file in data"`
	NewStore bool          `yaml:"new_store" usage:"start with an empty store although the keys in data were used with another one, whose content is lost. For one start only"`
	NewKey   bool          `yaml:"new_secrets_key" usage:"start with a new key for configs and secrets although the one of those in the store is lost. They have no values until they are replaced. For one start only"`
	Replica  bool          `yaml:"replica" usage:"share store with other replicas of this root: one is active at a time, and the others take over when it stops. Each needs the keys of the first one in data"`
	Replicas []string      `yaml:"replicas" usage:"with replica: https://host:port of all replicas of this root, this one included, at most 8. Clusters and the CLI learn them and use another one when the active one is gone"`
	Role     string        `yaml:"role" usage:"the installation's name in a store that several installations share"`

	ReplicaLease time.Duration `yaml:"replica_lease" usage:"with replica: silence of the active replica after which another one takes over; 0: 3s"`

	StandbyReads bool `yaml:"standby_reads" usage:"with replica: as a standby, answer reads of applications, services and instances from a copy that is at most 1s old"`

	GossipListen string `yaml:"gossip_listen" usage:"with replica: address for UDP and TCP at which the replicas of this root probe each other, for example :7446. All need it, and treeline get replicas shows them. Without a host, they use an address of this machine. Empty: none"`

	InstallDir string `yaml:"install_dir" usage:"directory with the programs that machines which join can install from here: in linux-amd64 and linux-arm64, or directly those of this machine's architecture. They must be of this version. Empty: the directory of this program"`

	Dead time.Duration `yaml:"dead" usage:"silence of a cluster after which its instances are placed elsewhere; 0: 30s"`

	Scheduler    string `yaml:"scheduler" usage:"the scheduler that chooses among the clusters that fit: rom, ldp, spread, binpack, wasm:/path/to/module, or an http:// or https:// URL"`
	MovesPerHour int    `yaml:"moves_per_hour" usage:"how often per hour an instance may move to another cluster because its placement violates its SLA"`

	Snapshot snapshot.Config `yaml:"snapshot"`

	CertLife time.Duration `yaml:"cert_life" usage:"how long the certificates of clusters are valid; each is renewed after two thirds of that. 0: a year, the maximum"`

	Network NetworkConfig `yaml:"network"`

	WebhookNetworks []string `yaml:"webhook_networks" usage:"networks besides public addresses to which webhooks may send events, also without TLS, for example 10.1.0.0/16"`

	OakestraCompat     bool   `yaml:"oakestra_compat" usage:"serve Oakestra's API under /api too, for its CLI and for scripts"`
	OakestraListen     string `yaml:"oakestra_listen" usage:"with oakestra_compat: address at which /api is also served over plain HTTP, which the oak CLI requires, for example 127.0.0.1:10000. Everyone on the way can read passwords and tokens. Empty: none"`
	OakestraDoubleJSON bool   `yaml:"oakestra_double_json" usage:"with oakestra_compat: encode as text the JSON that Oakestra's root encodes twice. Published scripts of experiments need it, the oak CLI does not"`

	Log daemon.Log `yaml:",inline"`
}

// NetworkConfig configures the overlay network. The first start fixes the ranges; after it they
// must be unchanged or empty.
type NetworkConfig struct {
	Instances  string `yaml:"instances" usage:"IPv4 network of the instances; clusters get shares of it. Empty: 10.16.0.0/13. This and the next five keys are used at the first start only and cannot be changed later"`
	Services   string `yaml:"services" usage:"IPv4 network of the services' addresses. Empty: 10.30.0.0/16"`
	Instances6 string `yaml:"instances_6" usage:"IPv6 /64 of the instances. Empty: fd74:6c6e:1::/64"`
	Services6  string `yaml:"services_6" usage:"IPv6 /64 of the services' addresses. Empty: fd74:6c6e:2::/64"`
	ShareBits  int    `yaml:"share_bits" usage:"length of the prefixes that clusters get. 0: 20"`
	SubnetBits int    `yaml:"subnet_bits" usage:"length of the prefixes that nodes get. 0: 26"`

	ClusterPercent int `yaml:"cluster_percent" usage:"maximum share of the instances' network for one cluster, in percent. 0: 25"`
	TenantPercent  int `yaml:"tenant_percent" usage:"maximum share of the services' network for one tenant with the tenants below it, in percent. 0: 25"`
}

// ranges returns the ranges of the network, or the zero value if none is configured.
func (n NetworkConfig) ranges() (wire.NetRanges, error) {
	if n == (NetworkConfig{ClusterPercent: n.ClusterPercent, TenantPercent: n.TenantPercent}) {
		return wire.NetRanges{}, nil
	}
	r := wire.DefaultNetRanges()
	for key, p := range map[string]struct {
		text string
		to   *netip.Prefix
	}{
		"instances": {n.Instances, &r.Instances}, "services": {n.Services, &r.Services},
		"instances_6": {n.Instances6, &r.Instances6}, "services_6": {n.Services6, &r.Services6},
	} {
		if p.text == "" {
			continue
		}
		var err error
		if *p.to, err = netip.ParsePrefix(p.text); err != nil {
			return r, daemon.Invalid("network."+key, "%q is not a network such as 10.16.0.0/13", p.text)
		}
	}
	r.Share, r.Subnet = cmp.Or(n.ShareBits, r.Share), cmp.Or(n.SubnetBits, r.Subnet)
	return r, nil
}

// Defaults returns the configuration without a file, environment or flags.
func Defaults() Config {
	return Config{
		Data: "/var/lib/treeline/root", Listen: ":7443", Role: "root", Scheduler: rom.Plugin{}.Name(), MovesPerHour: 4,
		Log: daemon.DefaultLog(),
	}
}

// Validate returns ErrInvalid if a value is out of range.
func (c Config) Validate() error {
	if c.Data == "" {
		return daemon.Invalid("data", "must name a directory")
	}
	if err := daemon.CheckListen(c.Listen); err != nil {
		return err
	}
	if c.URL != "" && !reach.Valid(c.URL) {
		return daemon.Invalid("url", "%q is not https://host:port", c.URL)
	}
	if err := daemon.CheckStore(c.Store); err != nil {
		return err
	}
	if err := c.replicas().Validate(); err != nil {
		return err
	}
	ranges, err := c.Network.ranges()
	if err != nil {
		return err
	}
	network := root.Config{Ranges: ranges, ClusterPercent: c.Network.ClusterPercent, TenantPercent: c.Network.TenantPercent}
	if err := network.Validate(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if !c.OakestraCompat && (c.OakestraListen != "" || c.OakestraDoubleJSON) {
		return daemon.Invalid("oakestra_compat", "is off, so that oakestra_listen and oakestra_double_json have no effect: switch it on, or leave these out")
	}
	if c.OakestraListen != "" {
		if err := daemon.CheckListen(c.OakestraListen); err != nil {
			return err
		}
	}
	if _, err := daemon.Networks("webhook_networks", c.WebhookNetworks); err != nil {
		return err
	}
	if c.Dead < 0 {
		return daemon.Invalid("dead", "%s, must not be negative", c.Dead)
	}
	if c.Scheduler != "" {
		if err := choice.Validate(c.Scheduler); err != nil {
			return err
		}
	}
	if c.MovesPerHour < 0 || c.MovesPerHour > 60 {
		return daemon.Invalid("moves_per_hour", "%d, want 0 to 60", c.MovesPerHour)
	}
	if err := c.Snapshot.Validate(); err != nil {
		return err
	}
	if c.CertLife != 0 && (c.CertLife < 5*time.Second || c.CertLife > ca.ClusterLife) {
		return daemon.Invalid("cert_life", "%s, want 5s to %s", c.CertLife, ca.ClusterLife)
	}
	if c.StandbyReads && !c.Replica {
		return daemon.Invalid("standby_reads", "needs replica: true")
	}
	return nil
}

func (c Config) replicas() standby.Config {
	return standby.Config{Replica: c.Replica, Store: c.Store, Replicas: c.Replicas, Lease: c.ReplicaLease, Gossip: c.GossipListen}
}

func (c Config) webhookNetworks() []netip.Prefix {
	nets, _ := daemon.Networks("webhook_networks", c.WebhookNetworks) // validated
	return nets
}

func (c Config) core(out *client.Scheduler) root.Config {
	ranges, _ := c.Network.ranges() // validated
	moves := c.MovesPerHour
	if moves == 0 {
		moves = -1
	}
	conf := root.Config{
		Dead: c.Dead, Ranges: ranges, ClusterPercent: c.Network.ClusterPercent, TenantPercent: c.Network.TenantPercent, MovesPerHour: moves,
		Plugin: choice.BuiltIn(c.Scheduler), // the default plugin, if the scheduler is external
	}
	if out != nil {
		conf.Asks = out.Name()
	}
	return conf
}
