package root

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

// TestAddressesSaidAgainCountOnce: a cluster names what it has with each whole.
func TestAddressesSaidAgainCountOnce(t *testing.T) {
	w := newWorld(t, "a")
	var used []api.ServiceAddress
	for i := range 100 {
		used = append(used, api.ServiceAddress{Address: netip.AddrFrom4([4]byte{10, 30, 9, byte(i + 1)}), Service: api.ServiceID(fmt.Sprintf("acme/old.prod.s%d.prod", i))})
	}
	for range 11 {
		w.net("a", api.ClusterNet{Whole: true, Subnets: 1, InUse: used})
	}
	rests := func(a netip.Addr) bool { _, ok := w.c.net.addresses.Resting(a); return ok }
	late := api.ServiceAddress{Address: netip.MustParseAddr("10.30.77.7"), Service: "acme/old.prod.late.prod"}
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1, InUse: append(used, late)})
	if !rests(late.Address) {
		t.Error("an address that is in use is not kept from others")
	}
	many := used[:0:0]
	for i := range 2 * mostQuoted {
		many = append(many, api.ServiceAddress{Address: netip.AddrFrom4([4]byte{10, 30, byte(100 + i/250), byte(1 + i%250)}), Service: "acme/x.x.x.x"})
	}
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1, InUse: many})
	n := 0
	for _, u := range many {
		if rests(u.Address) {
			n++
		}
	}
	if n != mostQuoted-101 {
		t.Errorf("%d more rest because one cluster says so", n)
	}
}

// TestWhatNobodyAskedForIsNotKept has a hostile cluster say a hundred thousand
// routes, and one that was asked for with more backends than there can be.
func TestWhatNobodyAskedForIsNotKept(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.twins["a"].room, w.twins["b"].room = 1, 1
	w.apply(2)
	w.settle()
	w.settle()
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1})
	want := api.Want{Service: web, For: web}
	w.net("b", api.ClusterNet{Whole: true, Subnets: 1, Wants: []api.Want{want}, Wanted: want.Digest()})
	x := &w.c.clusters["a"].net.exports
	for i := range 10 {
		var rec api.Records
		for j := range 1000 {
			id := api.ServiceID(fmt.Sprintf("x/a.b.c%d.d", i*1000+j))
			at := netip.AddrFrom4([4]byte{10, 16, byte(j / 250), byte(j % 250)})
			rec.Routes = append(rec.Routes, api.Route{Service: id, Rev: 1})
			rec.Refused = append(rec.Refused, api.Refusal{Want: api.Want{Service: id}})
			rec.Sources = append(rec.Sources, api.Source{Address: at, Rev: 1})
			rec.Peers = append(rec.Peers, api.Peer{Key: api.PeerKey{byte(i), byte(j), byte(j >> 8)}, Subnets: []netip.Prefix{netip.PrefixFrom(at, 32)}})
		}
		w.net("a", api.ClusterNet{Records: rec, Subnets: 1})
	}
	if len(x.Routes)+len(x.Sources)+len(x.Peers)+len(x.Refused) > 0 {
		t.Fatalf("it keeps %d routes, %d sources, %d peers, %d refusals", len(x.Routes), len(x.Sources), len(x.Peers), len(x.Refused))
	}
	own := w.shares("a")[0].Addr()
	r := api.Route{Service: web, Rev: 1, Access: api.Access{Callers: []string{string(make([]byte, 1<<20))}}}
	for i := range 10_000 {
		own = own.Next()
		key := api.PeerKey{byte(i), byte(i >> 8)}
		r.Backends = append(r.Backends, api.Backend{Instance: web.Instance(i), Address: own, Peer: key, State: api.BackendUp})
		r.Peers = append(r.Peers, api.Peer{Key: key, Chain: [][]byte{make([]byte, 100_000)}, Endpoints: make([]netip.AddrPort, 1000)})
	}
	w.net("a", api.ClusterNet{Records: api.Records{Routes: []api.Route{r}}, Subnets: 1, Said: r.Digest()})
	got := x.Routes[web]
	if len(got.Backends) == 0 || len(got.Backends) > 2*w.on("a")+spareBackends || len(got.Peers) > len(got.Backends) || got.Access.Callers != nil {
		t.Fatalf("%d backends, %d peers", len(got.Backends), len(got.Peers))
	}
	for _, p := range got.Peers {
		if len(p.Chain) > 0 || len(p.Endpoints) > mostEndpoints {
			t.Fatalf("a peer with %d certificates, %d endpoints", len(p.Chain), len(p.Endpoints))
		}
	}
	if x.Digest() != r.Digest() {
		t.Error("what was cut is asked for for ever")
	}
}

// TestWhatWasSaidTooEarlyIsAskedForAgain: after the root's restart a cluster
// repeats what an earlier life had asked for, before anybody wants it.
func TestWhatWasSaidTooEarlyIsAskedForAgain(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.twins["a"].room, w.twins["b"].room = 1, 1
	w.apply(2)
	w.settle()
	w.settle()
	w.restart()
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1, Records: api.Records{Routes: []api.Route{{Service: web, Rev: 7}}}})
	want := api.Want{Service: web, For: web}
	r := w.twins["b"].report()
	r.Net = &api.ClusterNet{Whole: true, Subnets: 1, Wants: []api.Want{want}, Wanted: want.Digest()}
	for _, e := range w.must(r).Send {
		if m, ok := e.Msg.(api.RootNet); ok && e.To == api.ClusterID("a").Addr() && m.WantNet && len(m.Asked) == 1 {
			return
		}
	}
	t.Errorf("a is told %+v", w.last.Send)
}
