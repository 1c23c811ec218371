package services_test

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/names"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
)

func svc(name string) api.ServiceID { return api.ServiceID("acme/shop.prod." + name + ".eu") }

func vip(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, n, 1}) }

func at(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 16, n, 2}) }

// route has one backend on each of the peers.
func route(name string, rev uint64, v byte, peers ...byte) api.Route {
	r := api.Route{Service: svc(name), Rev: rev, Addresses: api.ServiceAddresses{RoundRobin: vip(v)}}
	for i, p := range peers {
		r.Backends = append(r.Backends, api.Backend{Instance: r.Service.Instance(i), Epoch: 1, Address: at(p), Peer: api.PeerKey{p}, State: api.BackendUp})
		r.Peers = append(r.Peers, api.Peer{Key: api.PeerKey{p}, Rev: rev})
	}
	return r
}

func machine() *services.Machine {
	m := services.New()
	m.SetRanges(wire.DefaultNetRanges())
	return m
}

func TestRoutesReplaceOlderOnes(t *testing.T) {
	m := machine()
	first := m.SetRoute(route("web", 2, 1, 1, 2), false)
	if !first.Added || m.Held() != route("web", 2, 1, 1, 2).Digest() {
		t.Errorf("added: %v, digest %x", first.Added, m.Held())
	}
	for _, test := range []struct {
		rev         uint64
		whole, want bool
	}{{1, false, false}, {2, false, false}, {3, false, true}, {1, true, true}, {2, true, false}} {
		if got := m.NewerRoute(route("web", test.rev, 1), test.whole); got != test.want {
			t.Errorf("revision %d (whole: %v) replaces 2: %v, want %v", test.rev, test.whole, got, test.want)
		}
	}
	c := m.SetRoute(route("web", 3, 1, 2), false)
	if c.Added || !slices.Equal(c.Released, []api.PeerKey{{1}, {2}}) || !slices.Contains(c.Ended, at(1)) {
		t.Errorf("changes are %+v, want both peers released and flows to %s ended", c, at(1))
	}
	if _, ok := m.Owner(at(1)); ok {
		t.Errorf("%s still belongs to a service", at(1))
	}
	if id, _ := m.Owner(at(2)); id != svc("web") || !slices.Equal(m.HostedBy(api.PeerKey{2}), []api.ServiceID{svc("web")}) {
		t.Errorf("%s belongs to %q", at(2), id)
	}
	c = m.UnsetRoute(svc("web"), true)
	if m.Held() != 0 || !m.Remove(svc("web")) || m.Has(svc("web")) || !slices.Contains(c.Ended, at(2)) {
		t.Errorf("after its removal: digest %x, known %v, changes %+v", m.Held(), m.Has(svc("web")), c)
	}
}

func TestLoadsAreNotSaved(t *testing.T) {
	m := machine()
	r := route("web", 1, 1, 1)
	m.SetRoute(r, false)
	m.Save()
	r.Rev, r.Backends = 2, slices.Clone(r.Backends)
	r.Backends[0].Load = 40
	if m.SetRoute(r, false); len(m.Save()) != 0 {
		t.Error("a change of load is saved")
	}
	r = route("web", 3, 1, 1, 2)
	if m.SetRoute(r, false); len(m.Save()) != 1 {
		t.Error("a new backend is not saved")
	}
}

func TestASemanticAddressBelongsToOneService(t *testing.T) {
	m := machine()
	m.SetLocal(svc("api"), services.Local{Count: 1, Addresses: api.ServiceAddresses{RoundRobin: vip(1)}})
	m.SetRoute(route("web", 1, 1, 1), false)
	if id, _ := m.Semantic(vip(1)); id != svc("web") {
		t.Errorf("the address belongs to %s, want the service with a route", id)
	}
	m.SetLocal(svc("api"), services.Local{Count: 2, Addresses: api.ServiceAddresses{RoundRobin: vip(1)}})
	if id, _ := m.Semantic(vip(1)); id != svc("web") {
		t.Errorf("a local instance took the address for %s", id)
	}
	m.SetRoute(route("db", 1, 1, 2), false)
	if id, _ := m.Semantic(vip(1)); id != svc("db") {
		t.Errorf("the address belongs to %s, want the last route's service", id)
	}
	q, ok := m.Name(vip(1))
	if want := (names.Query{Service: svc("db"), Policy: names.RoundRobin, Number: -1}); !ok || q != want {
		t.Errorf("its name is %+v, %v, want %+v", q, ok, want)
	}
}

func TestAccessComesFromTheBestRecord(t *testing.T) {
	m := machine()
	closed := api.Access{Closed: true}
	m.SetLocal(svc("client"), services.Local{Count: 1})
	m.SetSource(wire.Source{Address: at(1), Rev: 1, Service: svc("web"), Access: closed}, false)
	if m.MayCall(svc("client"), svc("web")) || m.MayCall(svc("client"), svc("none")) {
		t.Error("a closed and an unknown service may be called")
	}
	r := route("web", 1, 1, 1)
	if m.SetRoute(r, false); !m.MayCall(svc("client"), svc("web")) {
		t.Error("the route's access is ignored")
	}
	if m.SetLocal(svc("web"), services.Local{Count: 1, Access: closed}); m.MayCall(svc("client"), svc("web")) {
		t.Error("the local instance's access is ignored")
	}
	pairs := map[plane.Pair]struct{}{}
	m.SetLocal(svc("web"), services.Local{})
	m.Pairs(svc("web"), pairs)
	if len(pairs) != 2 {
		t.Errorf("%d pairs of a remote and the local service, want 2: %v", len(pairs), pairs)
	}
}

func TestIdentsOutliveARestartAsLongAsTheirService(t *testing.T) {
	m := machine()
	m.SetRoute(route("web", 1, 1, 1), false)
	m.SetRoute(route("db", 1, 2, 1), false)
	web := m.Ident(svc("web"))
	next := machine()
	for _, d := range m.Save() {
		var r api.Route
		var err error
		switch d.Kind {
		case services.KindRoute:
			if err = next.Restoring(d, d.Key == string(svc("web")), &r); d.Key == string(svc("web")) {
				next.SetRoute(r, true)
			}
		default:
			err = next.RestoreIdent(d)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	next.Restored()
	if next.Ident(svc("web")) != web || next.Ident(svc("db")) != 0 {
		t.Errorf("idents are %d and %d, want %d and none", next.Ident(svc("web")), next.Ident(svc("db")), web)
	}
	if next.SetRoute(route("new", 1, 3, 1), false); next.Ident(svc("new")) <= web {
		t.Errorf("a new service has ident %d, which may have been used", next.Ident(svc("new")))
	}
	if docs := next.Save(); len(docs) < 2 {
		t.Errorf("%d documents, want the deletions of db's", len(docs))
	}
}

func TestNamesInAnotherCase(t *testing.T) {
	m := machine()
	m.SetRoute(route("web", 1, 1, 1), false)
	if id, ok := m.ByName(svc("WEB")); !ok || id != svc("web") {
		t.Errorf("WEB is %q, %v", id, ok)
	}
	m.SetRoute(route("Web", 1, 2, 1), false)
	if id, ok := m.ByName(svc("WEB")); ok {
		t.Errorf("WEB is %q, though two services differ in case", id)
	}
	if got := m.Spelt(svc("wEb")); len(got) != 2 {
		t.Errorf("%d spellings, want 2", len(got))
	}
}

func TestOnlyPeer(t *testing.T) {
	m := machine()
	m.SetRoute(route("web", 1, 1, 1, 1), false)
	m.SetRoute(route("db", 1, 2, 1, 2), false)
	if k := m.OnlyPeer(svc("web"), vip(1)); k != (api.PeerKey{1}) {
		t.Errorf("all instances of web are on %v, want peer 1", k)
	}
	if k := m.OnlyPeer(svc("db"), vip(2)); k != (api.PeerKey{}) {
		t.Errorf("all instances of db are on %v, want no single peer", k)
	}
	m.SetLocal(svc("web"), services.Local{Count: 1})
	if k := m.OnlyPeer(svc("web"), vip(1)); k != (api.PeerKey{}) {
		t.Errorf("with a local instance it is %v, want no single peer", k)
	}
}
