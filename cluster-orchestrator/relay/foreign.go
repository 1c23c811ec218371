package relay

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/treeline-edge/treeline/internal/udp"
)

// Foreign is the set of other clusters' relays that occur in routes. Its Allow is a value for
// Options.Allow. Run resolves host names, because nodes send to addresses. The zero Foreign is
// empty. It is safe for concurrent use.
type Foreign struct {
	// Resolve returns a host's addresses; nil means the system's resolver. Set it before Run.
	Resolve func(ctx context.Context, host string) ([]netip.Addr, error)

	mu    sync.RWMutex // guards the fields below
	wake  chan struct{}
	hosts map[string]bool              // by host:port, whether it was resolved
	addrs map[netip.AddrPort]time.Time // when a name last resolved to the address; zero: not from a name
}

const (
	// maxForeign bounds the set. When it is full, it is emptied. Relays in use are soon added
	// again.
	maxForeign      = 4096
	foreignInterval = 5 * time.Minute // until names are resolved again
	// foreignLifetime is how long an address stays allowed after a name last resolved to it,
	// because nodes may have resolved the name earlier.
	foreignLifetime = 3 * foreignInterval
)

// Add allows a relay (host:port) that the cluster has sent in a route. Adding a known relay is
// cheap.
func (f *Foreign) Add(host string) {
	f.mu.RLock()
	_, known := f.hosts[host]
	f.mu.RUnlock()
	if known || host == "" {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.hosts == nil || len(f.hosts) >= maxForeign {
		f.hosts, f.addrs = map[string]bool{}, map[netip.AddrPort]time.Time{}
	}
	if at, err := netip.ParseAddrPort(host); err == nil { // not a name
		f.hosts[host], f.addrs[plain(at)] = true, time.Time{}
		return
	}
	f.hosts[host] = false
	select {
	case f.wakeLocked() <- struct{}{}:
	default:
	}
}

// plain converts an IPv4-mapped IPv6 address to IPv4.
func plain(a netip.AddrPort) netip.AddrPort { return netip.AddrPortFrom(a.Addr().Unmap(), a.Port()) }

// wakeLocked returns the channel that wakes Run. The caller holds mu.
func (f *Foreign) wakeLocked() chan struct{} {
	if f.wake == nil {
		f.wake = make(chan struct{}, 1)
	}
	return f.wake
}

// Allow reports whether an address belongs to a relay in the set.
func (f *Foreign) Allow(a netip.AddrPort) bool {
	f.mu.RLock()
	defer f.mu.RUnlock()
	_, ok := f.addrs[plain(a)]
	return ok
}

// Run resolves names until ctx ends.
func (f *Foreign) Run(ctx context.Context) error {
	f.mu.Lock()
	wake := f.wakeLocked()
	f.mu.Unlock()
	tick := time.NewTicker(foreignInterval)
	defer tick.Stop()
	for {
		select {
		case <-wake:
			f.lookup(ctx, false)
		case <-tick.C:
			f.lookup(ctx, true)
		case <-ctx.Done():
			return nil
		}
	}
}

// lookup resolves the names that were not resolved yet, or all names. It removes expired
// addresses.
func (f *Foreign) lookup(ctx context.Context, all bool) {
	var names []string
	f.mu.RLock()
	for host, done := range f.hosts {
		if _, err := netip.ParseAddrPort(host); err != nil && (all || !done) {
			names = append(names, host)
		}
	}
	f.mu.RUnlock()
	for _, host := range names {
		one, cancel := context.WithTimeout(ctx, 10*time.Second)
		found, _ := udp.Resolve(one, host, f.Resolve) // none if it cannot be resolved
		cancel()
		f.mu.Lock()
		if _, still := f.hosts[host]; still {
			f.hosts[host] = len(found) > 0
			for _, a := range found {
				if at, ok := f.addrs[a]; !ok || !at.IsZero() {
					f.addrs[a] = time.Now()
				}
			}
		}
		f.mu.Unlock()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for a, at := range f.addrs {
		if !at.IsZero() && time.Since(at) > foreignLifetime {
			delete(f.addrs, a)
		}
	}
}
