package wiring

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/link"
)

// settleTime is how long the machine's addresses and routes must be at rest before
// they are looked at: a device that comes up changes them several times.
const settleTime = 200 * time.Millisecond

// watchPause is how long there is no watch after one ended, which the library's does
// when its socket overflows: what brings one overflow about brings the next.
const watchPause = time.Second

// watchPlace tells of the machine's moves until ctx ends, and with each whether the
// networks that it is connected to may be others. It ends w.
func watchPlace(ctx context.Context, log *slog.Logger, w watching, nudge <-chan struct{}, moved func(networks bool)) error {
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

// connects reports whether the machine is connected to a network by a route that is
// not of the overlay's making.
func connects(r netlink.Route) bool {
	p, ok := dataplane.Connected(r)
	return ok && r.Protocol != link.RouteProtocol && !p.Addr().IsLinkLocalUnicast() // which each device has, an instance's too
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
