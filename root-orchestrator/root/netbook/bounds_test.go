package netbook

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestOnlyAskedRecordsAreKept has a hostile cluster publish ten thousand records without a
// subscription, and one record with too many backends.
func TestOnlyAskedRecordsAreKept(t *testing.T) {
	w := spread(t)
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	want := wire.Subscription{Service: web, For: web}
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 1, Subscribe: []wire.Subscription{want}, Subscribed: want.Digest()})
	x := &w.book.clusters["a"].published
	for i := range 10 {
		var rec wire.Records
		for j := range 1000 {
			id := api.ServiceID(fmt.Sprintf("x/a.b.c%d.d", i*1000+j))
			at := netip.AddrFrom4([4]byte{10, 16, byte(j / 250), byte(j % 250)})
			rec.Routes = append(rec.Routes, api.Route{Service: id, Rev: 1})
			rec.Refused = append(rec.Refused, wire.Refusal{Subscription: wire.Subscription{Service: id}})
			rec.Sources = append(rec.Sources, wire.Source{Address: at, Rev: 1})
			rec.Peers = append(rec.Peers, api.Peer{Key: api.PeerKey{byte(i), byte(j), byte(j >> 8)}, Subnets: []netip.Prefix{netip.PrefixFrom(at, 32)}})
		}
		w.net("a", wire.ClusterNet{Records: rec, Subnets: 1})
	}
	if len(x.Routes)+len(x.Sources)+len(x.Peers)+len(x.Refused) > 0 {
		t.Fatalf("the book keeps %d routes, %d sources, %d peers and %d refusals that it did not ask for", len(x.Routes), len(x.Sources), len(x.Peers), len(x.Refused))
	}
	own := w.shares("a")[0].Addr()
	r := api.Route{Service: web, Rev: 1, Access: api.Access{Callers: []string{"rival/x.y"}}}
	for i := range 10_000 {
		own = own.Next()
		key := api.PeerKey{byte(i), byte(i >> 8)}
		r.Backends = append(r.Backends, api.Backend{Instance: web.Instance(i), Address: own, Peer: key, State: api.BackendUp})
		r.Peers = append(r.Peers, api.Peer{Key: key, Chain: [][]byte{make([]byte, 100_000)}, Endpoints: make([]netip.AddrPort, 1000)})
	}
	w.net("a", wire.ClusterNet{Records: wire.Records{Routes: []api.Route{r}}, Subnets: 1, Published: r.Digest()})
	got := x.Routes[web]
	if len(got.Backends) == 0 || len(got.Backends) > 2+spareBackends || len(got.Peers) > len(got.Backends) || got.Access.Callers != nil {
		t.Fatalf("the route has %d backends and %d peers, want 1 to %d backends and no more peers", len(got.Backends), len(got.Peers), 2+spareBackends)
	}
	for _, p := range got.Peers {
		if len(p.Chain) > 0 || len(p.Endpoints) > maxEndpoints {
			t.Fatalf("a peer has %d certificates and %d endpoints, want none and few", len(p.Chain), len(p.Endpoints))
		}
	}
	if x.Digest() != r.Digest() {
		t.Error("the digest changed when the route was cut: the cluster would be asked for it again and again")
	}
}

// TestRecordsThatCameTooEarlyAreAskedForAgain restarts the root. A cluster publishes records for
// subscriptions of the earlier process, before another cluster subscribes again.
func TestRecordsThatCameTooEarlyAreAskedForAgain(t *testing.T) {
	w := spread(t)
	w.restart()
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1, Records: wire.Records{Routes: []api.Route{{Service: web, Rev: 7}}}})
	want := wire.Subscription{Service: web, For: web}
	told := w.netTo("a", "b", wire.ClusterNet{Whole: true, Subnets: 1, Subscribe: []wire.Subscription{want}, Subscribed: want.Digest()})
	if !slices.ContainsFunc(told, func(m wire.RootNet) bool { return m.RequestWhole && len(m.Subscribe) == 1 }) {
		t.Errorf("a is sent %+v, want a request to list all with the record that it is asked for", told)
	}
}

// TestSubscriptionsOfOneTenantLeaveRoomForOthers exceeds the limit of one tenant. An event reports
// it, and the cluster has to list everything again when the tenant is below the limit.
func TestSubscriptionsOfOneTenantLeaveRoomForOthers(t *testing.T) {
	w := spread(t)
	var all []wire.Subscription
	var wanted api.Digest
	add := func(want wire.Subscription) wire.Subscription {
		wanted = wanted.Toggle(want.Digest())
		return want
	}
	for i := range maxSubscriptionsPerTenant + 10 {
		all = append(all, add(wire.Subscription{Service: web, For: api.ServiceID(fmt.Sprintf("acme/shop.prod.x%d.prod", i))}))
	}
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1, Subscribe: all, Subscribed: wanted})
	late := add(wire.Subscription{Service: "other/shop.prod.db.prod", For: "other/shop.prod.web.prod"})
	w.net("a", wire.ClusterNet{Subscribe: []wire.Subscription{late}, Subnets: 1, Shares: w.shares("a"), Subscribed: wanted})
	k := w.book.clusters["a"]
	if n := w.book.subs.Count("a"); !w.book.subs.Has("a", late) || n != maxSubscriptionsPerTenant+1 {
		t.Errorf("%d subscriptions are kept, want %d; is the other tenant's one of them: %v", n, maxSubscriptionsPerTenant+1, w.book.subs.Has("a", late))
	}
	if k.subsDiffer {
		t.Error("the rejected subscriptions make the digests differ")
	}
	said := 0
	for _, e := range w.events {
		if strings.Contains(e.Detail, "have reached the limit of subscriptions") && e.Tenant == "acme" {
			said++
		}
	}
	if said != 1 {
		t.Errorf("%d events say that the tenant is at its bound, want 1", said)
	}
	// Drop a rejected subscription and half of the accepted ones.
	beyond, gone := all[maxSubscriptionsPerTenant], all[:maxSubscriptionsPerTenant/2]
	for _, d := range append(slices.Clone(gone), beyond) {
		add(d)
	}
	told := w.net("a", wire.ClusterNet{Rev: k.sentRev, Unsubscribe: append(slices.Clone(gone), beyond), Subnets: 1, Shares: w.shares("a"), Subscribed: wanted})
	if k.subsDiffer || len(told) == 0 || !told[0].RequestWhole {
		t.Errorf("with room again, do digests differ: %v; %d messages, want one that asks to list all", k.subsDiffer, len(told))
	}
	rest := append(slices.Clone(all[len(gone):maxSubscriptionsPerTenant]), all[maxSubscriptionsPerTenant+1:]...)
	w.net("a", wire.ClusterNet{Whole: true, Subscribe: append(rest, late), Subnets: 1, Shares: w.shares("a"), Subscribed: wanted})
	if n := w.book.subs.Count("a"); n != len(rest)+1 || k.subsDiffer || k.rejected != 0 {
		t.Errorf("%d of %d are kept; do digests differ: %v", n, len(rest)+1, k.subsDiffer)
	}
}
