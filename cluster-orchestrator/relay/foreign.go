package relay

import (
	"context"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Foreign is the set of other clusters' relays that routes lead to; its Allow is
// for Options. Names in it are looked up, since nodes send to addresses. The zero
// value is empty and ready; Run keeps it.
type Foreign struct {
	// Resolve finds a host's addresses; nil asks the system. Set it before Run.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	mu    sync.RWMutex // guards the fields below
	wake  chan struct{}
	hosts []string // host:port, in order
	addrs map[netip.AddrPort]time.Time
}

const (
	foreignAgain = 5 * time.Minute // names are looked up again
	// foreignKept is how long an address stays allowed after the name last led to it:
	// nodes may have looked it up earlier.
	foreignKept = 3 * foreignAgain
)

// Set says which relays (host:port) the cluster has handed out. It may be called
// at any time, from anywhere.
func (f *Foreign) Set(hosts []string) {
	hosts = slices.Clone(hosts)
	slices.Sort(hosts)
	f.mu.Lock()
	changed := !slices.Equal(f.hosts, hosts)
	f.hosts = hosts
	wake := f.bell()
	f.mu.Unlock()
	if changed {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// bell is called with mu held.
func (f *Foreign) bell() chan struct{} {
	if f.wake == nil {
		f.wake = make(chan struct{}, 1)
	}
	return f.wake
}

// Allow reports whether the address is one of theirs.
func (f *Foreign) Allow(a netip.AddrPort) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, ok := f.addrs[a]
	return ok
}

// Run looks names up until ctx ends.
func (f *Foreign) Run(ctx context.Context) error {
	f.mu.Lock()
	wake := f.bell()
	f.mu.Unlock()
	tick := time.NewTicker(foreignAgain)
	defer tick.Stop()
	for {
		f.lookup(ctx)
		select {
		case <-wake:
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func (f *Foreign) lookup(ctx context.Context) {
	f.mu.RLock()
	hosts := f.hosts
	f.mu.RUnlock()
	now := time.Now()
	found := map[netip.AddrPort]time.Time{}
	for _, h := range hosts {
		for _, a := range f.addresses(ctx, h) {
			found[a] = now
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for a, at := range f.addrs {
		if _, again := found[a]; !again && len(hosts) > 0 && now.Sub(at) < foreignKept {
			found[a] = at
		}
	}
	f.addrs = found
}

// addresses are those of a host:port; none where it is not found now.
func (f *Foreign) addresses(ctx context.Context, hostport string) (list []netip.AddrPort) {
	if at, err := netip.ParseAddrPort(hostport); err == nil {
		return []netip.AddrPort{netip.AddrPortFrom(at.Addr().Unmap(), at.Port())}
	}
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return nil
	}
	resolve := f.Resolve
	if resolve == nil {
		resolve = func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	ips, err := resolve(ctx, host)
	if err != nil {
		return nil
	}
	for _, ip := range ips {
		list = append(list, netip.AddrPortFrom(ip.Unmap(), uint16(n)))
	}
	return list
}
