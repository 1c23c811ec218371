package fairshare

import (
	"net"
	"net/netip"
)

// Address returns the path of a network address: its subnet, then the prefix that one customer
// usually has. They are /24 and /32 for IPv4, /48 and /64 for IPv6.
func Address(a netip.Addr) []string {
	a = a.Unmap().WithZone("")
	if !a.IsValid() {
		return []string{"unknown", "unknown"}
	}
	coarse, fine := 24, 32
	if a.Is6() {
		coarse, fine = 48, 64
	}
	subnet, _ := a.Prefix(coarse) // the lengths are valid for the family
	own, _ := a.Prefix(fine)
	return []string{subnet.String(), own.String()}
}

// Remote returns Address of the remote address of a connection or request. All non-IP addresses,
// such as unix sockets, are one holder.
func Remote(addr string) []string {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		host = addr
	}
	a, _ := netip.ParseAddr(host)
	return Address(a)
}

// RemoteOf returns Remote of a net.Addr.
func RemoteOf(a net.Addr) []string {
	if tcp, ok := a.(*net.TCPAddr); ok {
		return Address(tcp.AddrPort().Addr())
	}
	if a == nil {
		return Address(netip.Addr{})
	}
	return Remote(a.String())
}
