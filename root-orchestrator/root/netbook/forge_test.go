package netbook

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestForgedSubnetsAreNotPassedOn has cluster b publish, in each kind of record,
// prefixes that are not leases of its shares.
func TestForgedSubnetsAreNotPassedOn(t *testing.T) {
	w := spread(t)
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 1})
	share, other := w.shares("b")[0], w.shares("a")[0]
	base := share.Addr()
	lease := func(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, 26).Masked() }
	for name, c := range map[string]struct {
		subnets []netip.Prefix
		good    bool
	}{
		"lease":           {[]netip.Prefix{lease(base)}, true},
		"all addresses":   {[]netip.Prefix{netip.PrefixFrom(base, 0)}, false},
		"wide":            {[]netip.Prefix{netip.PrefixFrom(base, 13)}, false},
		"whole share":     {[]netip.Prefix{share}, false},
		"one bit shorter": {[]netip.Prefix{netip.PrefixFrom(base, 25)}, false},
		"one bit longer":  {[]netip.Prefix{netip.PrefixFrom(base, 27)}, false},
		"not masked":      {[]netip.Prefix{netip.PrefixFrom(base.Next(), 26)}, false},
		"another share":   {[]netip.Prefix{lease(other.Addr())}, false},
		"good and bad":    {[]netip.Prefix{lease(base), netip.PrefixFrom(base, 0)}, false},
		"IPv6":            {[]netip.Prefix{netip.MustParsePrefix("fd74:6c6e:1::/64")}, false},
		"invalid":         {[]netip.Prefix{{}}, false},
		"none":            {nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := spread(t)
			w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
			w.net("b", wire.ClusterNet{Whole: true, Subnets: 1})
			p := api.Peer{Key: api.PeerKey{1}, Subnets: c.subnets, Rev: 1}
			at := base.Next().Next()
			wants := []wire.Subscription{{Service: web, For: web}, {Address: at, For: web}, {Address: base}}
			var digest api.Digest
			for _, want := range wants {
				digest = digest.Toggle(want.Digest())
			}
			w.net("a", wire.ClusterNet{Subscribe: wants, Subnets: 1, Shares: w.shares("a"), Subscribed: digest})
			rec := wire.Records{
				Routes: []api.Route{{
					Service: web, Rev: 1, Peers: []api.Peer{p},
					Backends: []api.Backend{{Instance: w.inB(), Address: at, Peer: p.Key, State: api.BackendUp}},
				}},
				Sources: []wire.Source{{Address: at, Rev: 1, Service: web, Peer: p}},
				Peers:   []api.Peer{p},
			}
			var routes, sources, peers, backends int
			for _, m := range w.netTo("a", "b", wire.ClusterNet{Records: rec, Subnets: 1, Shares: w.shares("b")}) {
				for _, r := range m.Routes {
					routes += len(r.Peers)
					backends += len(r.Backends)
				}
				sources, peers = sources+len(m.Sources), peers+len(m.Peers)
			}
			if got := []int{routes, backends, sources, peers}; c.good != slices.Equal(got, []int{1, 1, 1, 1}) || !c.good && !slices.Equal(got, []int{0, 0, 0, 0}) {
				t.Errorf("a is sent %d peers in routes, %d backends, %d sources, %d peers; are the subnets leases of b: %v", routes, backends, sources, peers, c.good)
			}
		})
	}
}
