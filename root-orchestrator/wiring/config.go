// Package wiring puts the root orchestrator together: its store, its core with
// the loop that owns it, its certificates and accounts, and the one port with
// the API for people and the link for clusters. It decides nothing.
//
//	err := wiring.Run(ctx, wiring.Defaults(), log)
package wiring

import (
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
	"github.com/treeline-edge/treeline/root-orchestrator/root"
)

// Config is the root orchestrator's configuration.
type Config struct {
	Data   string        `yaml:"data" usage:"directory for keys and, without a store elsewhere, for the store"`
	Listen string        `yaml:"listen" usage:"address of the API and of the link for clusters; port 0 takes a free one, see <data>/address"`
	URL    string        `yaml:"url" usage:"https://host:port under which clusters reach the root; join tokens carry it. Empty: made of this machine's address"`
	Names  []string      `yaml:"names" usage:"further DNS names and addresses for the server's certificate"`
	Store  daemon.Secret `yaml:"store" usage:"mongodb://… keeps documents there; empty: a file in data"`
	Role   string        `yaml:"role" usage:"the installation's name in a store that several share"`

	DeadTime time.Duration `yaml:"dead_time" usage:"silence of a cluster after which it counts as lost; 0: the core's default"`

	Log daemon.Log `yaml:",inline"`
}

// Defaults are the configuration without a file, environment or flags.
func Defaults() Config {
	return Config{
		Data: "/var/lib/treeline/root", Listen: ":7443", Role: "root", Log: daemon.DefaultLog(),
	}
}

// Validate reports what cannot work (ErrInvalid).
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
	if u, err := url.Parse(c.URL); c.URL != "" && (err != nil || u.Scheme != "https" || u.Host == "" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "") {
		return bad("url", "%q is not https://host:port", c.URL)
	}
	if s := c.Store.Reveal(); s != "" && !strings.HasPrefix(s, "mongodb://") && !strings.HasPrefix(s, "mongodb+srv://") {
		return bad("store", "a store elsewhere is mongodb://… or mongodb+srv://…")
	}
	if c.DeadTime < 0 {
		return bad("dead_time", "%s is less than nothing", c.DeadTime)
	}
	return nil
}

// reach says how others reach the listener: its URL, and the names that the
// server's certificate has.
func (c Config) reach(ln net.Addr) (external string, names []string) {
	host, port, _ := net.SplitHostPort(ln.String())
	names = []string{"localhost", "127.0.0.1", "::1"}
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	mine := machineAddresses()
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		mine = []string{host}
	}
	names = append(append(names, mine...), c.Names...)
	external = strings.TrimSuffix(c.URL, "/")
	if external == "" {
		best := "127.0.0.1"
		if len(mine) > 0 {
			best = mine[0]
		}
		external = "https://" + net.JoinHostPort(best, port)
	}
	if u, err := url.Parse(external); err == nil {
		names = append(names, u.Hostname())
	}
	slices.Sort(names)
	return external, slices.Compact(names)
}

// machineAddresses are the addresses under which others may reach this machine,
// IPv4 first.
func machineAddresses() []string {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	var v4, v6 []string
	for _, a := range addrs {
		n, ok := a.(*net.IPNet)
		switch {
		case !ok || !n.IP.IsGlobalUnicast():
		case n.IP.To4() != nil:
			v4 = append(v4, n.IP.String())
		default:
			v6 = append(v6, n.IP.String())
		}
	}
	return append(v4, v6...)
}

// dialable is the listener's address as a client on this machine dials it.
func dialable(ln net.Addr) string {
	host, port, _ := net.SplitHostPort(ln.String())
	if ip := net.ParseIP(host); ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	return net.JoinHostPort(host, port)
}

func (c Config) core() root.Config {
	return root.Config{Dead: c.DeadTime}
}
