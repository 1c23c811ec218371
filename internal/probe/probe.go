// Package probe says which addresses nodes may measure the way to for an SLA,
// which is to say for anybody: what is public, and what an operator allows. The
// cluster asks it of addresses that SLAs name, so that nobody is sent out in vain,
// and the node of those that names lead to, before it sends anything. Whom to
// measure and how is theirs.
//
//	probe.Permitted(netip.MustParseAddr("10.0.0.1"), nil, nil) // false
package probe

import (
	"net/netip"
	"slices"
)

// special are the networks that are not the public internet, or that lead to it
// by an address within the address: IANA's special-purpose registries (RFC 6890)
// but for AS112 and AMT, which are servers of everybody's, and multicast. Of IPv6,
// all but 2000::/3 is special too, with it NAT64's prefix (RFC 6052).
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

// Permitted reports whether an operator who allows and denies these networks lets
// a be probed: what is public or allowed, but nothing that is denied. What is no
// one host's is never, nor what has a zone. An IPv4 address counts as such however
// it is written, in networks too.
func Permitted(a netip.Addr, allow, deny []netip.Prefix) bool {
	if a.Zone() != "" {
		return false // of a link, whose names are one machine's alone
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
