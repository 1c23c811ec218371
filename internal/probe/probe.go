// Package probe decides which addresses nodes may probe for an SLA: public ones, and those that an
// operator allows. The cluster checks the addresses in SLAs. The node checks the addresses to which
// names resolve, before it sends anything.
//
//	probe.Permitted(netip.MustParseAddr("10.0.0.1"), nil, nil) // false
package probe

import (
	"net/netip"
	"slices"
)

// special are the networks that are not public or that embed another address: those of IANA's
// special-purpose registries (RFC 6890), except AS112 and AMT, which are public servers, and
// multicast. IPv6 addresses outside 2000::/3 are special too, including NAT64's (RFC 6052).
var special = prefixes(
	"0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12",
	"192.0.0.0/24", "192.0.2.0/24", "192.88.99.0/24", "192.168.0.0/16", "198.18.0.0/15", "198.51.100.0/24",
	"203.0.113.0/24", "224.0.0.0/4", "240.0.0.0/4",
	"2001::/23", "2001:db8::/32", "2002::/16", "3fff::/20",
)

var global6 = netip.MustParsePrefix("2000::/3")

func prefixes(text ...string) (out []netip.Prefix) {
	for _, t := range text {
		out = append(out, netip.MustParsePrefix(t))
	}
	return out
}

// Permitted reports whether nodes may probe a: it is public or in a network of allow, and not in one
// of deny. Addresses that are not unicast and addresses with a zone are never permitted.
// IPv4-mapped IPv6 addresses count as IPv4.
func Permitted(a netip.Addr, allow, deny []netip.Prefix) bool {
	if a.Zone() != "" {
		return false // a zone has a meaning on one machine only
	}
	a = a.Unmap()
	switch {
	case !a.IsValid(), a.IsUnspecified(), a.IsMulticast(), a == netip.AddrFrom4([4]byte{255, 255, 255, 255}):
		return false
	case within(a, deny):
		return false
	case within(a, allow):
		return true
	}
	return !within(a, special) && (a.Is4() || global6.Contains(a))
}

func within(a netip.Addr, nets []netip.Prefix) bool {
	return slices.ContainsFunc(nets, func(p netip.Prefix) bool {
		if p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		return p.Contains(a)
	})
}
