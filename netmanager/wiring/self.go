package wiring

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

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

// settleTime is how long the machine's addresses must be at rest before they are
// looked at: a device that comes up changes them several times.
const settleTime = 200 * time.Millisecond

// watchPause is how long there is no watch after one ended, which the library's does
// when its socket overflows: what brings one overflow about brings the next.
const watchPause = time.Second

// watchPlace tells of the machine's moves until ctx ends.
func watchPlace(ctx context.Context, log *slog.Logger, nudge <-chan struct{}, moved func()) error {
	updates, end, err := subscribe()
	if err != nil {
		return err
	}
	defer func() { end() }()
	var rest, again <-chan time.Time
	for {
		select {
		case _, open := <-updates:
			if !open { // the socket overflowed
				log.Warn("the machine's addresses were not watched for a moment")
				end()
				updates, again = nil, time.After(watchPause)
			} else if rest == nil {
				rest = time.After(settleTime)
			}
		case <-again:
			var failed error
			if updates, end, failed = subscribe(); failed != nil {
				log.Warn("the machine's addresses are not watched", "err", failed)
				again = time.After(watchPause)
				continue
			}
			again = nil
			moved() // after the watch began, so that nothing falls between
		case <-nudge:
			moved()
		case <-rest:
			rest = nil
			moved()
		case <-ctx.Done():
			return nil
		}
	}
}

// subscribe watches the machine's addresses until end, which frees its socket, or the
// channel does.
func subscribe() (_ <-chan netlink.AddrUpdate, end func(), err error) {
	updates, done := make(chan netlink.AddrUpdate, 64), make(chan struct{})
	end = sync.OnceFunc(func() { close(done) })
	if err := netlink.AddrSubscribe(updates, done); err != nil {
		return nil, end, fmt.Errorf("watch the machine's addresses: %w", err)
	}
	return updates, end, nil
}
