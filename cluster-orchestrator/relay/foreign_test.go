package relay

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
)

func TestForeignRelaysAreAllowedByAddress(t *testing.T) {
	one, two := netip.MustParseAddr("198.51.100.1"), netip.MustParseAddr("2001:db8::1")
	names := map[string][]netip.Addr{"relay.example": {one, two}}
	f := &Foreign{Resolve: func(_ context.Context, host string) ([]netip.Addr, error) {
		if a := names[host]; a != nil {
			return a, nil
		}
		return nil, api.ErrNotFound
	}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- f.Run(ctx) }()
	defer func() { cancel(); <-done }()
	for _, host := range []string{"relay.example:7443", "203.0.113.5:7443", "gone.example:1", "nonsense", ""} {
		f.Add(host)
	}
	for end := time.Now().Add(time.Minute); !f.Allow(netip.AddrPortFrom(one, 7443)); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("relay.example:7443 is not allowed a minute after it was added")
		}
	}
	for at, want := range map[string]bool{
		"[2001:db8::1]:7443": true, "203.0.113.5:7443": true, "198.51.100.1:7444": false, "198.51.100.2:7443": false,
	} {
		if f.Allow(netip.MustParseAddrPort(at)) != want {
			t.Errorf("%s is allowed: %v, want %v", at, !want, want)
		}
	}
}

func TestForeignRelaysAreBounded(t *testing.T) {
	var f Foreign
	for i := range 3 * maxForeign {
		f.Add(netip.AddrPortFrom(netip.AddrFrom4([4]byte{198, 18, byte(i >> 8), byte(i)}), 7443).String())
	}
	if len(f.hosts) > maxForeign || len(f.addrs) > maxForeign {
		t.Errorf("%d names and %d addresses are kept, want at most %d", len(f.hosts), len(f.addrs), maxForeign)
	}
}
