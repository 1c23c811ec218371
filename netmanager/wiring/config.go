// Package wiring configures a netmanager and connects its parts: the overlay core, the
// adapters of package host and below, the packet queue and the resolver.
//
//	err := wiring.Run(ctx, wiring.Defaults(), log)
package wiring

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/daemon"
)

// Config is the netmanager's configuration.
type Config struct {
	Data        string `yaml:"data" usage:"directory of the overlay key and the store"`
	Socket      string `yaml:"socket" usage:"unix socket for the node engine, whose setting netmanager.socket names it"`
	Credentials string `yaml:"credentials" usage:"the node engine's data directory, which contains the node's certificate"`

	Listen string `yaml:"listen" usage:"UDP address of the tunnel; port 0 selects a free one, which later starts use again"`
	Relay  bool   `yaml:"relay" usage:"reach peers through their clusters' relays, and be reached through the own cluster's, where no direct path is known"`
	Plane  string `yaml:"plane" usage:"data plane in the kernel: ebpf, nft (nftables), or auto: ebpf if the kernel supports it, else nft"`
	Prefix string `yaml:"prefix" usage:"prefix of the names of all devices and rules; must differ between netmanagers in one network namespace"`
	VXLAN  uint16 `yaml:"vxlan_port" usage:"UDP port of VXLAN, for peers in unencrypted networks behind a router; 0: they are reached by the tunnel"`

	Closed []string `yaml:"closed" usage:"networks that workloads may not reach, in addition to the machine's own and the clouds' metadata services"`
	Open   []string `yaml:"open" usage:"exceptions: networks, and single addresses of the machine, that workloads may reach"`

	Resolvers []string `yaml:"resolvers" usage:"address:port of name servers for names outside the overlay; empty: those of the machine"`

	ListenStatus string `yaml:"listen_status" usage:"where /livez, /readyz, /metrics and /version are served: a loopback host:port, or the path of a unix socket; \"data\" is status.sock in the data directory, \"off\" nowhere"`
	Remove       bool   `yaml:"remove" usage:"remove all devices and rules of this prefix from the machine, and exit"`

	Log daemon.Log `yaml:",inline"`
}

// Defaults returns the configuration without a file, environment or flags.
func Defaults() Config {
	return Config{
		Data: "/var/lib/treeline/net", Socket: "/run/treeline/net.sock", Credentials: "/var/lib/treeline/node",
		Listen: ":0", Relay: true, Plane: "auto", Prefix: "tl", VXLAN: 4789,
		ListenStatus: "data", Log: daemon.DefaultLog(),
	}
}

var prefixRE = regexp.MustCompile(`^[a-z][a-z0-9]{0,4}$`) // device names append eight hexadecimal digits

// Validate returns the first invalid setting (ErrInvalid).
func (c Config) Validate() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	switch {
	case c.Data == "":
		return bad("data", "must name a directory")
	case !strings.HasPrefix(c.Socket, "/"):
		return bad("socket", "%q is not an absolute path", c.Socket)
	case daemon.CheckSocket(c.Socket) != nil:
		return fmt.Errorf("socket: %w", daemon.CheckSocket(c.Socket))
	case c.Credentials == "":
		return bad("credentials", "must name the node engine's data directory")
	case !slices.Contains([]string{"auto", "ebpf", "nft"}, c.Plane):
		return bad("plane", "%q is not auto, ebpf or nft", c.Plane)
	case !prefixRE.MatchString(c.Prefix):
		return bad("prefix", "%q is not a lower-case letter with up to four lower-case letters or digits after it", c.Prefix)
	}
	if _, err := c.listen(); err != nil {
		return bad("listen", "%v", err)
	}
	for key, list := range map[string][]string{"closed": c.Closed, "open": c.Open} {
		if _, err := prefixes(list); err != nil {
			return bad(key, "%v", err)
		}
	}
	for _, r := range c.Resolvers {
		if _, err := netip.ParseAddrPort(r); err != nil {
			return bad("resolvers", "%q is not address:port", r)
		}
	}
	if err := daemon.CheckStatus(c.ListenStatus); err != nil {
		return bad("listen_status", "%v", err)
	}
	return nil
}

// listen returns the tunnel's UDP address; without a host it is all addresses of both families.
func (c Config) listen() (netip.AddrPort, error) {
	if port, ok := strings.CutPrefix(c.Listen, ":"); ok {
		return netip.ParseAddrPort("[::]:" + port)
	}
	return netip.ParseAddrPort(c.Listen)
}

func prefixes(list []string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, err
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
