package wiring

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// mostEndpoints is how many addresses of its own a node tells.
const mostEndpoints = 8

// place is where the machine is: addresses under which it may be reached, and the
// networks that they are on.
type place struct {
	own    []netip.Addr
	onLink []netip.Prefix
}

func (p place) equal(o place) bool {
	return slices.Equal(p.own, o.own) && slices.Equal(p.onLink, o.onLink)
}

// endpoints are the addresses with the tunnel's port.
func (p place) endpoints(port uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range p.own {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

// look finds where the machine is. Devices whose names begin with prefix are the
// overlay's own.
func look(prefix string, ranges api.NetRanges) (place, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return place{}, fmt.Errorf("list the machine's devices: %w", err)
	}
	var p place
	for _, d := range devices {
		if d.Flags&net.FlagUp == 0 || d.Flags&net.FlagLoopback != 0 || strings.HasPrefix(d.Name, prefix) {
			continue
		}
		addrs, err := d.Addrs()
		if err != nil {
			continue // it is gone
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(n.IP)
			ip = ip.Unmap()
			bits, _ := n.Mask.Size()
			if !reachable(ip, ranges) {
				continue
			}
			p.own = append(p.own, ip)
			if on := netip.PrefixFrom(ip, bits).Masked(); !on.IsSingleIP() && !slices.Contains(p.onLink, on) {
				p.onLink = append(p.onLink, on)
			}
		}
	}
	if len(p.own) > mostEndpoints {
		p.own = p.own[:mostEndpoints]
	}
	return p, nil
}

// reachable reports whether others may find the machine at an address of its own.
func reachable(a netip.Addr, ranges api.NetRanges) bool {
	return a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() && !a.IsMulticast() && !a.IsUnspecified() && !ranges.Untwin(a).IsValid()
}
