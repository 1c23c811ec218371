// Package wiring puts the root orchestrator together: its store, its core with
// the loop that owns it, its certificates and accounts, and the port that serves the
// API for people and the link for clusters.
//
//	err := wiring.Run(ctx, wiring.Defaults(), log)
package wiring

import (
	"cmp"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/internal/identity/ca"
	"github.com/treeline-edge/treeline/internal/reach"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
	"github.com/treeline-edge/treeline/scheduler-plugins/choice"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched/client"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
)

// Config is the root orchestrator's configuration.
type Config struct {
	Data     string        `yaml:"data" usage:"directory for keys and, without a store elsewhere, for the store"`
	Listen   string        `yaml:"listen" usage:"address of the API and of the link for clusters; port 0 takes a free one, see <data>/address"`
	URL      string        `yaml:"url" usage:"https://host:port under which clusters reach the root; join tokens carry it. Empty: made of this machine's address"`
	Names    []string      `yaml:"names" usage:"further DNS names and addresses for the server's certificate"`
	Store    daemon.Secret `yaml:"store" usage:"mongodb://… keeps documents there; empty: a file in data"`
	NewStore bool          `yaml:"new_store" usage:"start with an empty store although the keys in data were used with another: what that knew is lost. For one start"`
	Role     string        `yaml:"role" usage:"the installation's name in a store that several share"`

	Dead time.Duration `yaml:"dead" usage:"silence of a cluster after which its instances are placed elsewhere; 0: the core's default"`

	Scheduler    string `yaml:"scheduler" usage:"who chooses among the clusters that fit: rom, ldp, spread, binpack, wasm:/path/to/module, or an http:// or https:// URL"`
	MovesPerHour int    `yaml:"moves_per_hour" usage:"how often an hour one instance may move to another cluster because its place breaks its SLA"`

	CertLife time.Duration `yaml:"cert_life" usage:"how long the certificates of clusters last; each is renewed at two thirds of its life. 0: a year, and more there is not"`

	Network NetworkConfig `yaml:"network"`

	Log daemon.Log `yaml:",inline"`
}

// NetworkConfig configures the overlay network. The ranges are fixed at the first start;
// later they must be the same or empty.
type NetworkConfig struct {
	Instances  string `yaml:"instances" usage:"IPv4 network of the instances; clusters get shares of it. Empty: 10.16.0.0/13. This and the next five count at the first start only, and cannot be changed later"`
	Services   string `yaml:"services" usage:"IPv4 network of the services' addresses. Empty: 10.30.0.0/16"`
	Instances6 string `yaml:"instances_6" usage:"IPv6 /64 of the instances. Empty: fd74:6c6e:1::/64"`
	Services6  string `yaml:"services_6" usage:"IPv6 /64 of the services' addresses. Empty: fd74:6c6e:2::/64"`
	ShareBits  int    `yaml:"share_bits" usage:"length of the prefixes that clusters get. 0: 20"`
	SubnetBits int    `yaml:"subnet_bits" usage:"length of the prefixes that nodes get. 0: 26"`

	ClusterPercent int `yaml:"cluster_percent" usage:"how much of the instances' network one cluster gets at most, in percent. 0: 25"`
	TenantPercent  int `yaml:"tenant_percent" usage:"how much of the services' network one tenant gets at most, with the tenants below it, in percent. 0: 25"`
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
			return r, fmt.Errorf("network.%s: %q is no network such as 10.16.0.0/13: %w", key, p.text, api.ErrInvalid)
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

// Validate returns ErrInvalid if the configuration cannot work.
func (c Config) Validate() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	if c.Data == "" {
		return bad("data", "a directory is needed")
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return bad("listen", "%q is not host:port or :port", c.Listen)
	}
	if c.URL != "" && !reach.Valid(c.URL) {
		return bad("url", "%q is not https://host:port", c.URL)
	}
	if s := c.Store.Reveal(); s != "" && !strings.HasPrefix(s, "mongodb://") && !strings.HasPrefix(s, "mongodb+srv://") {
		return bad("store", "a store elsewhere is mongodb://… or mongodb+srv://…")
	}
	ranges, err := c.Network.ranges()
	if err != nil {
		return err
	}
	if err := (root.Config{Ranges: ranges, ClusterPercent: c.Network.ClusterPercent, TenantPercent: c.Network.TenantPercent}).Validate(); err != nil {
		return fmt.Errorf("network: %w", err)
	}
	if c.Dead < 0 {
		return bad("dead", "%s is less than nothing", c.Dead)
	}
	if c.Scheduler != "" {
		if err := choice.Validate(c.Scheduler); err != nil {
			return err
		}
	}
	if c.MovesPerHour < 0 || c.MovesPerHour > 60 {
		return bad("moves_per_hour", "%d, want 0 to 60", c.MovesPerHour)
	}
	if c.CertLife != 0 && (c.CertLife < 5*time.Second || c.CertLife > ca.ClusterLife) {
		return bad("cert_life", "%s, want 5s to %s", c.CertLife, ca.ClusterLife)
	}
	return nil
}

func (c Config) core(out *client.Scheduler) root.Config {
	ranges, _ := c.Network.ranges() // validated
	moves := c.MovesPerHour
	if moves == 0 {
		moves = -1
	}
	conf := root.Config{
		Dead: c.Dead, Ranges: ranges, ClusterPercent: c.Network.ClusterPercent, TenantPercent: c.Network.TenantPercent, MovesPerHour: moves,
		Plugin: choice.BuiltIn(c.Scheduler), // of a scheduler outside the default takes the place where it fails
	}
	if out != nil {
		conf.Asks = out.Name()
	}
	return conf
}
