package api

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
)

// targetRE matches a host name. Its last part begins with a letter, so that mistyped IP addresses
// do not match.
var targetRE = regexp.MustCompile(`^(?i:(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z](?:[a-z0-9-]{0,61}[a-z0-9])?)$`)

// longestHost is the maximum length of a host name (RFC 1035).
const longestHost = 253

// ParseTarget parses the target of a latency constraint or of a ProbeOrder: a host name or an IP
// address, with a port, 0 if there is none. An IPv6 address before a port is in brackets. Anything
// else is ErrInvalid. It does not check whether the operator allows probes of the address.
func ParseTarget(text string) (host string, port uint16, err error) {
	bad := fmt.Errorf("%q is not a host or host:port: %w", shorten(text), ErrInvalid)
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

// oneHost reports whether an address can be that of one host.
func oneHost(a netip.Addr) bool { return !a.IsUnspecified() && !a.IsMulticast() && a.Zone() == "" }
