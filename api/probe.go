package api

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// ProbeOrder has a node measure the round trip to a target that is no node, for
// the trilateration of a user (Oakestra paper §3.2.1, Algorithm 2).
type ProbeOrder struct {
	ID     uint64 `json:"id"`     // the cluster's, repeated in the answer
	Target string `json:"target"` // host, or host:port for TCP alone
	// Allow are networks of addresses that may be probed although they are not public.
	// The node resolves the name, and refuses what is neither: nobody scans a private
	// network by way of an SLA.
	Allow []netip.Prefix `json:"allow,omitempty"`
	// Deny are networks that may not be probed, public or not.
	Deny []netip.Prefix `json:"deny,omitempty"`
	Wait time.Duration  `json:"wait"` // give up after
	// For is an opaque name of the tenant, by which nodes divide their probes among
	// tenants. It is empty from clusters of an earlier release.
	For string `json:"for,omitempty"`
}

// Probed answers a ProbeOrder. RTT is the least of several, 0 with an Error.
type Probed struct {
	ID    uint64        `json:"id"`
	RTT   time.Duration `json:"rtt"`
	How   string        `json:"how,omitempty"` // "icmp" or "tcp"
	Error string        `json:"error,omitempty"`
	// Refused says that the policy forbids the target; nobody else need try.
	Refused bool `json:"refused,omitempty"`
}

// targetRE is a host name whose last part begins with a letter, so that a mistyped
// address is none.
var targetRE = regexp.MustCompile(`^(?i:(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)$`)

// longestHost is of a host name, RFC 1035.
const longestHost = 253

// ParseTarget reads the target of a latency constraint or of a ProbeOrder: a host
// name or an IP address, and a port, 0 where none is given. An IPv6 address
// before a port is in brackets. Anything else, a URL for one, is ErrInvalid.
// Whether the address may be probed is the operator's to say.
func ParseTarget(text string) (host string, port uint16, err error) {
	bad := fmt.Errorf("%q is no host or host:port: %w", shorten(text), ErrInvalid)
	if addr, err := netip.ParseAddr(text); err == nil {
		if !oneHost(addr) {
			return "", 0, bad
		}
		return addr.String(), 0, nil
	}
	if to, err := netip.ParseAddrPort(text); err == nil {
		if !oneHost(to.Addr()) || to.Port() == 0 {
			return "", 0, bad
		}
		return to.Addr().String(), to.Port(), nil
	}
	host, number, given := strings.Cut(text, ":")
	if given {
		n, err := strconv.ParseUint(number, 10, 16)
		if err != nil || n == 0 {
			return "", 0, bad
		}
		port = uint16(n)
	}
	if len(host) > longestHost || !targetRE.MatchString(host) {
		return "", 0, bad
	}
	return host, port, nil
}

// oneHost reports whether an address may be one host's, of any network.
func oneHost(a netip.Addr) bool { return !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" }
