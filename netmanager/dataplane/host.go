package dataplane

import (
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Connected returns the network of a route to a device without a router, in any table, because VPNs
// use tables of their own. ok is false for all other routes, and for a default route.
func Connected(r netlink.Route) (p netip.Prefix, ok bool) {
	if r.Type != unix.RTN_UNICAST || r.Dst == nil || r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0 {
		return p, false
	}
	a, ok := netip.AddrFromSlice(r.Dst.IP)
	ones, _ := r.Dst.Mask.Size()
	return netip.PrefixFrom(a.Unmap(), ones), ok && ones > 0
}

// ConntrackSetting returns a setting of the kernel's connection tracking, or the parameter otherwise if
// connection tracking is not loaded or not visible in this namespace.
func ConntrackSetting(name string, otherwise uint64) uint64 {
	b, _ := os.ReadFile("/proc/sys/net/netfilter/" + name)
	if n, err := strconv.ParseUint(strings.TrimSpace(string(b)), 10, 32); err == nil && n > 0 {
		return n
	}
	return otherwise
}
