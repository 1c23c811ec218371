package root

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

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
	w := spread(t)
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
	r := api.Route{Service: web, Rev: 1, Access: api.Access{Callers: []string{"rival/x.y"}}}
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
	w := spread(t)
	w.restart()
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1, Records: api.Records{Routes: []api.Route{{Service: web, Rev: 7}}}})
	want := api.Want{Service: web, For: web}
	told := w.netTo("a", "b", api.ClusterNet{Whole: true, Subnets: 1, Wants: []api.Want{want}, Wanted: want.Digest()})
	if !slices.ContainsFunc(told, func(m api.RootNet) bool { return m.WantNet && len(m.Asked) == 1 }) {
		t.Errorf("a is told %+v", told)
	}
}

// TestOneTenantsWantsLeaveRoomForOthers fills what a cluster may want for one
// tenant; what is beyond is said, and kept when there is room again.
func TestOneTenantsWantsLeaveRoomForOthers(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(2)
	w.settle()
	var all []api.Want
	var wanted api.Digest
	add := func(want api.Want) api.Want {
		wanted = wanted.Toggle(want.Digest())
		return want
	}
	for i := range mostWantsOfTenant + 10 {
		all = append(all, add(api.Want{Service: web, For: api.ServiceID(fmt.Sprintf("acme/shop.prod.x%d.prod", i))}))
	}
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1, Wants: all, Wanted: wanted})
	late := add(api.Want{Service: "other/shop.prod.db.prod", For: "other/shop.prod.web.prod"})
	w.net("a", api.ClusterNet{Wants: []api.Want{late}, Subnets: 1, Shares: w.shares("a"), Wanted: wanted})
	k := &w.c.clusters["a"].net
	if n := w.c.net.book.Count("a"); !w.c.net.book.Has("a", late) || n != mostWantsOfTenant+1 {
		t.Errorf("%d wants are kept, another tenant's: %v", n, w.c.net.book.Has("a", late))
	}
	if k.unsure {
		t.Error("it asks for ever for what it does not keep")
	}
	said := 0
	for _, e := range w.c.Events(EventFilter{}) {
		if strings.Contains(e.Detail, "than are kept") && e.Tenant == "acme" {
			said++
		}
	}
	if said != 1 {
		t.Errorf("said %d times", said)
	}
	// One that was not kept is dropped, and then a good part of the others.
	beyond, gone := all[mostWantsOfTenant], all[:mostWantsOfTenant/2]
	for _, d := range append(slices.Clone(gone), beyond) {
		add(d)
	}
	told := w.net("a", api.ClusterNet{Rev: k.sent, Dropped: append(slices.Clone(gone), beyond), Subnets: 1, Shares: w.shares("a"), Wanted: wanted})
	if k.unsure || len(told) == 0 || !told[0].WantNet {
		t.Errorf("with room again: unsure %v, told %d", k.unsure, len(told))
	}
	rest := append(slices.Clone(all[len(gone):mostWantsOfTenant]), all[mostWantsOfTenant+1:]...)
	w.net("a", api.ClusterNet{Whole: true, Wants: append(rest, late), Subnets: 1, Shares: w.shares("a"), Wanted: wanted})
	if n := w.c.net.book.Count("a"); n != len(rest)+1 || k.unsure || k.unkept != 0 {
		t.Errorf("%d of %d are kept, unsure %v", n, len(rest)+1, k.unsure)
	}
}

// TestNoFewClustersTakeTheWholeNetwork: each gets a quarter, and the last eighth
// is for those that have nothing.
func TestNoFewClustersTakeTheWholeNetwork(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d", "e")
	for _, id := range []api.ClusterID{"a", "b", "c", "d"} {
		w.net(id, api.ClusterNet{Whole: true, Subnets: 1_000_000})
	}
	w.net("e", api.ClusterNet{Whole: true, Subnets: 1})
	if a, d, e := len(w.shares("a")), len(w.shares("d")), len(w.shares("e")); a != 32 || d != 128-3*32-16 || e != 1 {
		t.Fatalf("a has %d shares, d %d, e %d", a, d, e)
	}
	// What it has no use for it returns; that rests, and counts as its own until then.
	before := w.shares("a")
	told := w.net("a", api.ClusterNet{Subnets: 1, Shares: before, Returned: before[1:]})
	if got := w.shares("a"); len(got) != 1 || len(told) != 1 || !slices.Equal(told[0].Shares, got) {
		t.Fatalf("it has %v, told %+v", got, told)
	}
	w.net("a", api.ClusterNet{Subnets: 1, Shares: before, Returned: before[1:]}) // it was not told yet
	w.net("a", api.ClusterNet{Subnets: 1_000_000, Shares: w.shares("a")})
	if got := w.shares("a"); len(got) != 1 {
		t.Errorf("it takes and returns all the time, and has %d", len(got))
	}
	w.restart()
	for id := range w.twins {
		w.net(id, api.ClusterNet{Whole: true, Subnets: 1, Shares: w.shares(id)})
	}
	w.net("e", api.ClusterNet{Subnets: 1_000_000, Shares: w.shares("e")})
	for _, p := range w.shares("e") {
		if slices.Contains(before, p) {
			t.Errorf("%s is given again at once", p)
		}
	}
	w.now = w.now.Add(31 * time.Minute)
	w.net("e", api.ClusterNet{Subnets: 1_000_000, Shares: w.shares("e")})
	if got := len(w.shares("e")); got != 128-1-32-32-16-16 {
		t.Errorf("when they have rested, e gets %d", got)
	}
}

// TestWhatIsAddedAndNeverGoneIsBounded has a cluster add instances of its own and take
// them away again, without ever saying that nothing of them is left.
func TestWhatIsAddedAndNeverGoneIsBounded(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.settle()
	first, s := w.c.clusters["a"].Info.LocalNumbers(), w.c.services[web]
	for i := range 2*MaxReplicas - 3 { // those of before
		id := web.Instance(first + 50_000 + i)
		s.instances[id] = &instance{ID: id, Leaving: true}
	}
	for i := range 10 {
		o := api.Observed{Instance: web.Instance(first + i), Epoch: 1, State: api.Running, Local: true}
		for range 2 {
			r := w.twins["a"].report()
			r.Observed = append(r.Observed, o)
			w.do(r)
			o.State, o.Reason = api.Terminated, api.ReasonScaledLocally
		}
	}
	if n := len(s.instances); n != 2*MaxReplicas {
		t.Errorf("%d instances are kept, want at most %d", n, 2*MaxReplicas)
	}
}
