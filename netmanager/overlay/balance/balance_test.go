package balance_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/balance"
)

const web = api.ServiceID("acme/shop.prod.web.eu")

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	vip   = netip.MustParseAddr("10.30.1.1")
	near  = netip.MustParseAddr("10.30.1.2")
)

func backend(n byte) balance.Backend {
	return balance.Backend{Instance: web.Instance(int(n)), Epoch: 1, Address: netip.AddrFrom4([4]byte{10, 16, n, 2}), Peer: api.PeerKey{n}}
}

func numbers(all []balance.Backend) string {
	out := ""
	for _, b := range all {
		out += fmt.Sprintf("%d@%d ", b.Instance.Number(), b.Epoch)
	}
	return strings.TrimSpace(out)
}

func TestOpenPrefersHealthyBackends(t *testing.T) {
	with := func(n byte, change func(*balance.Backend)) balance.Backend {
		b := backend(n)
		change(&b)
		return b
	}
	draining := with(2, func(b *balance.Backend) { b.Draining = true })
	silent := with(3, func(b *balance.Backend) { b.Silent = true })
	both := with(4, func(b *balance.Backend) { b.Draining, b.Silent = true, true })
	gone := with(5, func(b *balance.Backend) { b.Gone, b.Draining = true, true })
	for _, test := range []struct {
		all  []balance.Backend
		want string
	}{
		{[]balance.Backend{backend(1), draining, silent, both, gone}, "1@1"},
		{[]balance.Backend{draining, silent, both, gone}, "2@1"},
		{[]balance.Backend{silent, both, gone}, "3@1"},
		{[]balance.Backend{both, gone}, "4@1"},
		{[]balance.Backend{gone}, "5@1"},
		{nil, ""},
	} {
		if got := numbers(balance.Open(test.all)); got != test.want {
			t.Errorf("open of %s is %q, want %q", numbers(test.all), got, test.want)
		}
	}
}

func TestOlderPlacementsDrain(t *testing.T) {
	old, next := backend(1), backend(1)
	next.Epoch, next.Address = 2, netip.MustParseAddr("10.16.9.2")
	all := []balance.Backend{next, old}
	if balance.Resolve(all); numbers(balance.Open(all)) != "1@2" {
		t.Errorf("open is %s, want the newer placement", numbers(balance.Open(all)))
	}
	all = []balance.Backend{next, old}
	all[0].Gone = true // its node does not know it, so it replaces nothing
	if balance.Resolve(all); numbers(balance.Open(all)) != "1@1" {
		t.Errorf("open is %s, want the older placement", numbers(balance.Open(all)))
	}
}

func weights(m *balance.Machine, all ...balance.Backend) string {
	out := ""
	for _, s := range m.Services(web, 1, api.ServiceAddresses{RoundRobin: vip}, all, func(netip.Addr) bool { return true }) {
		for _, b := range s.Backends {
			out += fmt.Sprintf("%d ", b.Weight)
		}
	}
	return strings.TrimSpace(out)
}

func TestWeightsFollowLoadAndLoss(t *testing.T) {
	m := balance.New()
	a, b := backend(1), backend(2)
	for _, test := range []struct {
		load [2]uint8
		lost bool
		want string
	}{
		{[2]uint8{0, 0}, false, "1 1"},
		{[2]uint8{50, 75}, false, "2 1"},
		{[2]uint8{50, 70}, false, "2 1"}, // changed by less than 10 points
		{[2]uint8{50, 50}, false, "1 1"},
		{[2]uint8{50, 50}, true, "1 2"},
		{[2]uint8{100, 1}, false, "1 16"},
	} {
		a.Load, b.Load, a.Lossy = test.load[0], test.load[1], test.lost
		if got := weights(m, a, b); got != test.want {
			t.Errorf("loads %v, the first lossy: %v: weights %s, want %s", test.load, test.lost, got, test.want)
		}
	}
}

func TestClosestChangesAfterThreeUpdates(t *testing.T) {
	m, at := balance.New(), api.ServiceAddresses{Closest: near}
	a, b := backend(1), backend(2)
	a.Distance, b.Distance = 10*time.Millisecond, 50*time.Millisecond
	weigh := func() string {
		m.Weigh(start, web, at, []balance.Backend{a, b}, b.Peer, false)
		return numbers(m.Nearest(web, balance.Open([]balance.Backend{a, b})))
	}
	if got := weigh(); got != "1@1" {
		t.Fatalf("the closest is %s, want the first backend", got)
	}
	b.Distance = 12 * time.Millisecond
	for i := range 3 {
		want := "1@1"
		if i == 2 {
			want = "1@1 2@1"
		}
		if got := weigh(); got != want {
			t.Errorf("update %d: the closest are %q, want %q", i+1, got, want)
		}
	}
	if m.Weigh(start, web, api.ServiceAddresses{}, nil, b.Peer, false) {
		t.Error("a service without a closest address changed")
	}
}

func TestDistance(t *testing.T) {
	const ms = time.Millisecond
	for _, test := range []struct {
		kind api.PathKind
		rtt  time.Duration
		loss float64
		want time.Duration
	}{
		{api.PathDirect, 10 * ms, 0, 10 * ms},
		{api.PathNone, 10 * ms, 0, 70 * ms}, // the estimate
		{api.PathDirect, 0, 0, 70 * ms},
		{api.PathRelay, 10 * ms, 0, 15 * ms},
		{api.PathRelayTLS, 10 * ms, 0, 30 * ms},
		{api.PathDirect, 10 * ms, 0.1, 30 * ms},
		{api.PathDirect, 10 * ms, 7, 210 * ms},
	} {
		if got := balance.Distance(test.kind, test.rtt, test.loss, 70*ms); got != test.want {
			t.Errorf("%s, %s, loss %v: %s, want %s", test.kind, test.rtt, test.loss, got, test.want)
		}
	}
}
