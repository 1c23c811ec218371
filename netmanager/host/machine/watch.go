package machine

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

const (
	// settleTime is how long Run waits after a change before it reports it: a device that
	// comes up changes addresses and routes several times.
	settleTime = 200 * time.Millisecond
	// resubscribePause is the pause between a subscription that ended and the next. The
	// library ends one when its socket overflows, and the load behind one overflow would
	// cause the next.
	resubscribePause = time.Second
)

// Watch is a subscription to the machine's addresses and routes.
type Watch struct {
	log *slog.Logger
	sub subscription
}

// NewWatch subscribes. Run ends the subscription; Close does so without Run.
func NewWatch(log *slog.Logger) (*Watch, error) {
	sub, err := subscribe()
	return &Watch{log: log, sub: sub}, err
}

// Close ends the subscription. It may be called several times.
func (w *Watch) Close() { w.sub.end() }

// Run calls changed after each change of the machine's addresses or connected networks,
// and after each value on check, until ctx ends. networks is whether the connected
// networks may have changed. Run subscribes again when the subscription is lost, and
// then reports a change, because it may have missed one.
func (w *Watch) Run(ctx context.Context, check <-chan struct{}, changed func(networks bool)) error {
	defer w.Close()
	var settled, resubscribe <-chan time.Time
	networks := false
	settle := func() {
		if settled == nil {
			settled = time.After(settleTime)
		}
	}
	lost := func() {
		w.log.Warn("watch of addresses and routes interrupted", "retry_in", resubscribePause)
		w.sub.end()
		w.sub, resubscribe = subscription{end: func() {}}, time.After(resubscribePause)
	}
	for {
		select {
		case _, open := <-w.sub.addresses:
			if !open {
				lost()
				continue
			}
			settle()
		case u, open := <-w.sub.routes:
			switch {
			case !open:
				lost()
			case connects(u.Route):
				networks = true
				settle()
			}
		case <-resubscribe:
			sub, err := subscribe()
			if err != nil {
				w.log.Warn("watch addresses and routes failed", "err", err, "retry_in", resubscribePause)
				resubscribe = time.After(resubscribePause)
				continue
			}
			w.sub, resubscribe, networks = sub, nil, false
			changed(true)
		case <-check:
			changed(false)
		case <-settled:
			n := networks
			settled, networks = nil, false
			changed(n)
		case <-ctx.Done():
			return nil
		}
	}
}

// connects reports whether the route connects the machine to a network. It ignores
// routes of the overlay, and link-local ones, which every device has.
func connects(r netlink.Route) bool {
	p, ok := dataplane.Connected(r)
	return ok && r.Protocol != link.RouteProtocol && !p.Addr().IsLinkLocalUnicast()
}

// subscription receives changes until end, which frees its sockets. The library closes
// a channel when its socket overflows.
type subscription struct {
	addresses <-chan netlink.AddrUpdate
	routes    <-chan netlink.RouteUpdate
	end       func()
}

func subscribe() (subscription, error) {
	done, addresses, routes := make(chan struct{}), make(chan netlink.AddrUpdate, 64), make(chan netlink.RouteUpdate, 64)
	s := subscription{addresses, routes, sync.OnceFunc(func() {
		close(done)
		go drain(addresses) // the library blocks until its last update is read, then closes the channel
		go drain(routes)
	})}
	if err := netlink.AddrSubscribe(addresses, done); err != nil {
		return s, fmt.Errorf("watch addresses: %w", err)
	}
	if err := netlink.RouteSubscribe(routes, done); err != nil {
		close(routes) // the library closes only channels that it uses
		s.end()
		return s, fmt.Errorf("watch routes: %w", err)
	}
	return s, nil
}

func drain[T any](ch <-chan T) {
	for range ch {
	}
}
