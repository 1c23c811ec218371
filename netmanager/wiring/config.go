// Package wiring puts a netmanager together: its key and the node's certificate,
// its store, its core with the loop that owns it, the kernel's data plane and
// devices, the tunnel, the hold and the resolver, and the socket of the node
// engine. It decides nothing.
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
	Data        string `yaml:"data" usage:"directory for the overlay key and for the store"`
	Socket      string `yaml:"socket" usage:"unix socket for the node engine, which names it as netmanager.socket"`
	Credentials string `yaml:"credentials" usage:"the node engine's data directory, which has the node's certificate"`

	Listen string `yaml:"listen" usage:"UDP address of the tunnel; port 0 takes a free one and keeps it"`
	Relay  bool   `yaml:"relay" usage:"reach peers through their clusters' relays, and be reached through one's own, where no direct path is known"`
	Plane  string `yaml:"plane" usage:"auto, ebpf or nft: what chooses and rewrites in the kernel; auto is ebpf where the kernel allows it"`
	Prefix string `yaml:"prefix" usage:"begins the names of all devices and rules; another one for each netmanager in one network namespace"`
	VXLAN  uint16 `yaml:"vxlan_port" usage:"UDP port of VXLAN, for peers in clear networks that a router lies before; 0: they are reached by the tunnel"`

	Closed []string `yaml:"closed" usage:"networks that workloads may not reach, beside the machine's own and where clouds tell their machines secrets"`
	Open   []string `yaml:"open" usage:"networks that they may reach all the same, and single addresses of the machine"`

	Resolvers []string `yaml:"resolvers" usage:"host:port of name servers for what is no service; empty: the machine's own"`

	ListenStatus string `yaml:"listen_status" usage:"where /livez, /readyz, /metrics and /version are served: a loopback host:port, or the path of a unix socket; \"data\" is status.sock in the data directory, \"off\" nowhere"`
	Remove       bool   `yaml:"remove" usage:"take everything of this prefix away from the machine, and end"`

	Log daemon.Log `yaml:",inline"`
}

// Defaults are the configuration without a file, environment or flags.
func Defaults() Config {
	return Config{
		Data: "/var/lib/treeline/net", Socket: "/run/treeline/net.sock", Credentials: "/var/lib/treeline/node",
		Listen: ":0", Relay: true, Plane: "auto", Prefix: "tl", VXLAN: 4789,
		ListenStatus: "data", Log: daemon.DefaultLog(),
	}
}

var prefixRE = regexp.MustCompile(`^[a-z][a-z0-9]{0,4}$`) // with eight hexadecimal digits it is a device's name

// Validate reports what cannot work (ErrInvalid).
func (c Config) Validate() error {
	bad := func(key, format string, args ...any) error {
		return fmt.Errorf("%s: %s: %w", key, fmt.Sprintf(format, args...), api.ErrInvalid)
	}
	switch {
	case c.Data == "":
		return bad("data", "a directory is needed")
	case !strings.HasPrefix(c.Socket, "/"):
		return bad("socket", "%q is no absolute path", c.Socket)
	case daemon.CheckSocket(c.Socket) != nil:
		return fmt.Errorf("socket: %w", daemon.CheckSocket(c.Socket))
	case c.Credentials == "":
		return bad("credentials", "the node engine's data directory is needed")
	case !slices.Contains([]string{"auto", "ebpf", "nft"}, c.Plane):
		return bad("plane", "%q, want auto, ebpf or nft", c.Plane)
	case !prefixRE.MatchString(c.Prefix):
		return bad("prefix", "%q is no letter with up to four letters or digits after it", c.Prefix)
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
			return bad("resolvers", "%q is no address:port", r)
		}
	}
	if err := daemon.CheckStatus(c.ListenStatus); err != nil {
		return bad("listen_status", "%v", err)
	}
	return nil
}

// listen is the tunnel's address; no host means all, of both families.
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
