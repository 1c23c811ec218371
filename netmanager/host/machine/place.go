// Package machine finds the addresses and networks of the machine that the
// netmanager runs on, and reports when they change.
package machine

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/internal/wire"
)

// maxAddresses bounds the addresses that a node reports as its own.
const maxAddresses = 8

// Place is the machine's position in the network underneath the overlay.
type Place struct {
	Own    []netip.Addr   // addresses at which other machines may reach this one
	OnLink []netip.Prefix // networks that these addresses are in
}

// Equal reports whether both places are the same.
func (p Place) Equal(o Place) bool {
	return slices.Equal(p.Own, o.Own) && slices.Equal(p.OnLink, o.OnLink)
}

// Endpoints returns the machine's addresses, each with port.
func (p Place) Endpoints(port uint16) []netip.AddrPort {
	var out []netip.AddrPort
	for _, a := range p.Own {
		out = append(out, netip.AddrPortFrom(a, port))
	}
	return out
}

// Find reads the machine's place from its devices. It ignores devices whose names begin
// with prefix, which are the overlay's, and addresses in ranges.
func Find(prefix string, ranges wire.NetRanges) (Place, error) {
	devices, err := net.Interfaces()
	if err != nil {
		return Place{}, fmt.Errorf("list network devices: %w", err)
	}
	var p Place
	for _, d := range devices {
		if d.Flags&net.FlagUp == 0 || d.Flags&net.FlagLoopback != 0 || strings.HasPrefix(d.Name, prefix) {
			continue
		}
		addrs, err := d.Addrs()
		if err != nil {
			continue // the device was removed meanwhile
		}
		for _, a := range addrs {
			n, ok := a.(*net.IPNet)
			if !ok {
				continue
			}
			ip, _ := netip.AddrFromSlice(n.IP)
			ip = ip.Unmap()
			if !ip.IsGlobalUnicast() || ranges.To4(ip).IsValid() {
				continue
			}
			bits, _ := n.Mask.Size()
			p.Own = append(p.Own, ip)
			if on := netip.PrefixFrom(ip, bits).Masked(); !on.IsSingleIP() && !slices.Contains(p.OnLink, on) {
				p.OnLink = append(p.OnLink, on)
			}
		}
	}
	p.Own = p.Own[:min(len(p.Own), maxAddresses)]
	return p, nil
}
