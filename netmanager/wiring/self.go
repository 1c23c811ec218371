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
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/link"
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

// settleTime is how long the machine's addresses and routes must be at rest before
// they are looked at: a device that comes up changes them several times.
const settleTime = 200 * time.Millisecond

// watchPause is how long there is no watch after one ended, which the library's does
// when its socket overflows: what brings one overflow about brings the next.
const watchPause = time.Second

// watchPlace tells of the machine's moves until ctx ends, and with each whether the
// networks that it is connected to may be others.
func watchPlace(ctx context.Context, log *slog.Logger, nudge <-chan struct{}, moved func(networks bool)) error {
	w, err := watchHost()
	if err != nil {
		return err
	}
	defer func() { w.end() }()
	var rest, again <-chan time.Time
	networks := false
	settle := func() {
		if rest == nil {
			rest = time.After(settleTime)
		}
	}
	overflowed := func() {
		log.Warn("the machine's addresses and routes were not watched for a moment")
		w.end()
		w, again = watching{end: func() {}}, time.After(watchPause)
	}
	for {
		select {
		case _, open := <-w.addresses:
			if !open {
				overflowed()
				continue
			}
			settle()
		case u, open := <-w.routes:
			switch {
			case !open:
				overflowed()
			case connects(u.Route):
				networks = true
				settle()
			}
		case <-again:
			now, failed := watchHost()
			if failed != nil {
				log.Warn("the machine's addresses and routes are not watched", "err", failed)
				again = time.After(watchPause)
				continue
			}
			w, again, networks = now, nil, false
			moved(true) // after the watch began, so that nothing falls between
		case <-nudge:
			moved(false)
		case <-rest:
			told := networks
			rest, networks = nil, false
			moved(told)
		case <-ctx.Done():
			return nil
		}
	}
}

// connects reports whether a route leads to a network that the machine is connected
// to: by a device, in whichever table, and not of the overlay's making.
func connects(r netlink.Route) bool {
	if r.Type != unix.RTN_UNICAST || r.Protocol == link.RouteProtocol || r.Gw != nil || r.Via != nil || len(r.MultiPath) > 0 || r.Dst == nil {
		return false
	}
	ones, _ := r.Dst.Mask.Size()
	return ones > 0 && !r.Dst.IP.IsLinkLocalUnicast() // which each device has, an instance's too
}

// watching is a watch of the machine's addresses and routes, until end, which frees its
// sockets. A channel ends where its socket overflows.
type watching struct {
	addresses <-chan netlink.AddrUpdate
	routes    <-chan netlink.RouteUpdate
	end       func()
}

func watchHost() (watching, error) {
	done, addresses, routes := make(chan struct{}), make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64)
	w := watching{addresses, routes, sync.OnceFunc(func() {
		close(done)
		go drain(addresses) // the library waits for whoever reads, and closes them then
		go drain(routes)
	})}
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		return w, fmt.Errorf("watch the machine's addresses: %w", err)
	}
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		close(routes) // nobody does
		w.end()
		return w, fmt.Errorf("watch the machine's routes: %w", err)
	}
	return w, nil
}

func drain[T any](ch <-chan T) {
	for range ch {
	}
}
