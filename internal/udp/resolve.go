package udp

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"

	"github.com/treeline-edge/treeline/api"
)

// Resolve returns the addresses of host:port, each once, in the order of lookup; nil: the system's
// resolver. It fails with ErrInvalid if the port is not a number, and with ErrNotFound if there is no
// address.
func Resolve(ctx context.Context, hostport string, lookup func(ctx context.Context, host string) ([]netip.Addr, error)) ([]netip.AddrPort, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, api.ErrInvalid)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil, fmt.Errorf("port %q of %s is not a number up to 65535: %w", port, hostport, api.ErrInvalid)
	}
	if lookup == nil {
		lookup = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	var ips []netip.Addr
	if ip, notIP := netip.ParseAddr(host); notIP == nil {
		ips = []netip.Addr{ip}
	} else if ips, err = lookup(ctx, host); err != nil {
		return nil, err
	}
	var list []netip.AddrPort
	for _, ip := range ips {
		if a := netip.AddrPortFrom(ip.Unmap(), uint16(n)); !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	if len(list) == 0 {
		return nil, fmt.Errorf("%s has no address: %w", host, api.ErrNotFound)
	}
	return list, nil
}
