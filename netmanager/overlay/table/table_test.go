package table_test

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/table"
)

var vip = netip.MustParseAddr("10.30.1.1")

func service(ident plane.Ident, weight int) plane.Service {
	return plane.Service{Address: vip, Ident: ident, Backends: []plane.Backend{{Address: netip.MustParseAddr("10.16.1.2"), Weight: weight}}}
}

func services(t *table.Table, of map[api.ServiceID][]plane.Service) string {
	t.SetServices(of)
	ch, _ := t.Take()
	return fmt.Sprintf("%d set, %d dropped", len(ch.SetServices), len(ch.DropServices))
}

func TestOnlyDifferencesAreChanges(t *testing.T) {
	x := table.New()
	for _, step := range []struct {
		of   map[api.ServiceID][]plane.Service
		want string
	}{
		{map[api.ServiceID][]plane.Service{"a": {service(1, 1)}}, "1 set, 0 dropped"},
		{map[api.ServiceID][]plane.Service{"a": {service(1, 1)}}, "0 set, 0 dropped"},
		{map[api.ServiceID][]plane.Service{"a": {service(1, 2)}}, "1 set, 0 dropped"},
		{map[api.ServiceID][]plane.Service{"a": nil, "b": {service(2, 2)}}, "1 set, 0 dropped"}, // it moves
		{map[api.ServiceID][]plane.Service{"b": nil}, "0 set, 1 dropped"},
	} {
		if got := services(x, step.of); got != step.want {
			t.Errorf("%v: %s, want %s", step.of, got, step.want)
		}
	}
}

func TestPairsAreAllowedAndDeniedOnce(t *testing.T) {
	x := table.New()
	ab, ba := plane.Pair{From: 1, To: 2}, plane.Pair{From: 2, To: 1}
	set := func(of ...table.Permissions) string {
		x.SetPairs(of)
		ch, _ := x.Take()
		return fmt.Sprint(ch.Allow, ch.Deny)
	}
	pairs := func(p ...plane.Pair) table.Set[plane.Pair] {
		out := table.Set[plane.Pair]{}
		for _, p := range p {
			out[p] = struct{}{}
		}
		return out
	}
	for i, step := range []struct{ got, want string }{
		{set(table.Permissions{Service: "a", Ident: 1, Pairs: pairs(ab, ba)}), "[{1 2} {2 1}] []"},
		{set(table.Permissions{Service: "b", Ident: 2, Pairs: pairs(ab, ba)}), "[] []"},
		{set(table.Permissions{Service: "b", Ident: 2, Pairs: pairs(ba)}), "[] [{1 2}]"},
		{set(table.Permissions{Service: "b"}), "[] [{2 1}]"}, // it is gone
	} {
		if step.got != step.want {
			t.Errorf("step %d: allowed and denied %s, want %s", i, step.got, step.want)
		}
	}
}

func TestResendRepeatsWhatThePlaneLost(t *testing.T) {
	x, k := table.New(), api.PeerKey{1}
	peer := plane.Peer{Key: k, MTU: 1380}
	x.SetPeer(k, peer, true)
	x.Take()
	x.SetPeer(k, peer, true)
	if _, ok := x.Take(); ok {
		t.Error("the same peer is a change")
	}
	x.ResendPeer(k)
	x.SetPeer(k, peer, true)
	if ch, ok := x.Take(); !ok || len(ch.SetPeers) != 1 {
		t.Errorf("after a resend the change is %+v, %v", ch, ok)
	}
	if x.ResendSource(vip); len(x.Touched.Sources) != 0 {
		t.Error("a source that the plane never had is sent again")
	}
	if !x.SetPeer(k, peer, false) {
		t.Error("dropping a peer is not reported")
	}
	x.Touched.Silent = true
	if ch, ok := x.Take(); ok {
		t.Errorf("a change while the plane is synchronised: %+v", ch)
	}
}
