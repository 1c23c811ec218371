package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

func TestNamesLeadToSemanticAddresses(t *testing.T) {
	w, client := ready(t)
	w.answer(wire.NetDown{})
	ask := func(name string) Answer { return w.c.View().Lookup(client, name) }
	eff := w.step(Query{Local: client, Name: "web.treeline."})
	if ups := messages(eff); len(ups) != 1 || ups[0].Subscribe[0] != (wire.Subscription{Service: svc("web"), For: svc("client")}) || ask("web.treeline.").Known {
		t.Fatalf("%+v", eff.Send)
	}
	r := route("web", 1, 1, 1, 2)
	r.Addresses.Closest = ip("10.30.1.2")
	r.Ports = []api.PortMap{{Host: 53, Instance: 5353, Protocol: "udp"}, {Host: 80, Instance: 8080, Protocol: "tcp"}}
	eff = w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if got := orders[Answered](eff); len(got) != 1 || got[0].Name != "web.treeline." {
		t.Fatalf("%+v", eff.Send)
	}
	for name, want := range map[string]string{
		"web.treeline.": "[10.30.1.1] [fd74:6c6e:2::a1e:101]", "any.closest.web.treeline": "[10.30.1.2] [fd74:6c6e:2::a1e:102]",
		"WEB.eu.treeline.": "[10.30.1.1] [fd74:6c6e:2::a1e:101]", "1.instance.web.treeline.": "[10.30.1.11] [fd74:6c6e:2::a1e:10b]",
		"any.instance.web.treeline.": "[10.30.1.10 10.30.1.11] [fd74:6c6e:2::a1e:10a fd74:6c6e:2::a1e:10b]",
	} {
		if a := ask(name); !a.Known || !a.Found || fmt.Sprint(a.Addrs, " ", a.Addrs6) != want {
			t.Errorf("%s: %+v, want %s", name, a, want)
		}
	}
	for _, name := range []string{"9.instance.web.treeline.", "web", "x.y.z.treeline."} {
		if a := ask(name); !a.Known || a.Found {
			t.Errorf("%s: %+v", name, a)
		}
	}
	if a := w.c.View().Lookup(ip("10.16.0.60"), "web.treeline."); !a.Known || a.Found {
		t.Errorf("for nobody: %+v", a)
	}
	a := w.c.View().Lookup(client, "_http._tcp.web.treeline.")
	if len(a.SRV) != 2 || a.SRV[0] != (Target{"0.instance.web.eu.shop.prod.treeline.", ip("10.30.1.10"), ip("fd74:6c6e:2::a1e:10a"), 8080, 1}) {
		t.Errorf("%+v", a)
	}
	for addr, want := range map[string]string{
		"1.1.30.10.in-addr.arpa.": "any.rr.web.eu.shop.prod.treeline.", "2.1.30.10.in-addr.arpa.": "any.closest.web.eu.shop.prod.treeline.",
		"11.1.30.10.in-addr.arpa.": "1.instance.web.eu.shop.prod.treeline.", "1.2.16.10.in-addr.arpa.": "1.instance.web.eu.shop.prod.treeline.",
		"2.0.16.10.in-addr.arpa.": "0.instance.client.eu.shop.prod.treeline.", "9.9.30.10.in-addr.arpa.": "",
	} {
		if a := w.c.View().Lookup(client, addr); a.PTR != want || !w.c.View().Covers(addr) {
			t.Errorf("%s: %+v", addr, a)
		}
	}
	if w.c.View().Covers("8.8.8.8.in-addr.arpa.") || w.c.View().Covers("example.org.") {
		t.Error("others' addresses are ours")
	}
	w.checkIndexes()
}

func TestTheNameOfAnUnknownServiceDoesNotExist(t *testing.T) {
	w, client := ready(t)
	w.step(Query{Local: client, Name: "web.treeline."})
	want := wire.Subscription{Service: svc("web"), For: svc("client")}
	eff := w.answer(wire.NetDown{Records: wire.Records{Refused: []wire.Refusal{{Subscription: want}}}})
	if a := w.c.View().Lookup(client, "web.treeline."); len(orders[Answered](eff)) != 1 || !a.Known || a.Found {
		t.Fatalf("%+v %+v", a, eff.Send)
	}
	if eff := w.step(Query{Local: client, Name: "web.treeline."}); len(orders[Answered](eff)) != 1 || len(messages(eff)) > 0 {
		t.Fatalf("%+v", eff.Send)
	}
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}, RemovedRefusals: []wire.Subscription{want}}})
	if a := w.c.View().Lookup(client, "web.treeline."); !a.Found {
		t.Fatalf("%+v", a)
	}
	w.checkIndexes()
}

func TestNamesOfLocalServicesResolveWithoutTheCluster(t *testing.T) {
	w, client := ready(t)
	w.step(Link{false})
	web := attachOf("web", 0, 1)
	web.Addresses = route("web", 1, 1, 1).Addresses
	w.step(web)
	w.step(Query{Local: client, Name: "web.treeline."})
	if a := w.c.View().Lookup(client, "web.treeline."); !a.Found || len(a.Addrs) != 1 || a.Addrs[0] != vip(1) {
		t.Fatalf("%+v", a)
	}
	if eff := w.step(Miss{Local: client, Remote: vip(1)}); len(orders[Release](eff)) != 1 {
		t.Fatalf("%+v", eff.Send)
	}
	w.checkIndexes()
}

// A name that exists does so for records of every type, and so does a parent of names (RFC 8020).
// Otherwise resolvers stop the search.
func TestExistenceOfANameDoesNotDependOnTheQueryType(t *testing.T) {
	w, client := ready(t)
	w.step(Query{Local: client, Name: "web.treeline."})
	w.step(Query{Local: client, Name: "bare.treeline."})
	r, bare := route("web", 1, 1, 1), route("bare", 1, 2, 1, 2)
	r.Ports = []api.PortMap{{Host: 80, Instance: 8080, Protocol: "tcp"}}
	bare.Ports, bare.Addresses.Instances = r.Ports, nil
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r, bare}}})
	for name, want := range map[string]string{
		"web.treeline.":                                "true 1 0 ",
		"_http._tcp.web.treeline.":                     "true 0 1 ",
		"_tcp.web.treeline.":                           "true 0 0 ",
		"_HTTP._TCP.0.instance.web.treeline.":          "true 0 1 ",
		"_http._tcp.7.instance.web.treeline.":          "false 0 0 ",
		"_http._sctp.web.treeline.":                    "false 0 0 ",
		"_udp.web.treeline.":                           "false 0 0 ",
		"_.treeline.":                                  "false 0 0 ",
		"_http._tcp.bare.treeline.":                    "true 0 1 ", // the service, because its instances have no addresses
		"_http._tcp.any.closest.bare.treeline.":        "true 0 0 ",
		"7.instance.web.treeline.":                     "false 0 0 ",
		"rr.web.eu.shop.prod.treeline.":                "true 1 0 ",
		"closest.web.eu.shop.prod.treeline.":           "false 0 0 ",
		"1.1.30.10.in-addr.arpa.":                      "true 0 0 any.rr.web.eu.shop.prod.treeline.",
		"1.1.16.10.in-addr.arpa.":                      "true 0 0 0.instance.web.eu.shop.prod.treeline.",
		"treeline.":                                    "true 0 0 ",
		"Prod.treeline.":                               "true 0 0 ",
		"shop.prod.treeline":                           "true 0 0 ",
		"eu.shop.prod.treeline.":                       "true 0 0 ",
		"of-tenant.acme.treeline.":                     "true 0 0 ",
		"prod.of-tenant.acme.treeline.":                "true 0 0 ",
		"stage.treeline.":                              "false 0 0 ",
		"dev.shop.prod.treeline.":                      "false 0 0 ",
		"60.0.16.10.in-addr.arpa.":                     "false 0 0 ", // an unused address of this node
		"client.eu.shop.prod.of-tenant.acme.treeline.": "true 0 0 ",
	} {
		w.step(Query{Local: client, Name: name})
		var refused []wire.Refusal
		for _, k := range w.subscriptions() {
			if k.Service != svc("web") && k.Service != svc("bare") {
				refused = append(refused, wire.Refusal{Subscription: k})
			}
		}
		w.answer(wire.NetDown{Records: wire.Records{Refused: refused}})
		a := w.c.View().Lookup(client, name)
		if got := fmt.Sprint(a.Found, " ", len(a.Addrs), " ", len(a.SRV), " ", a.PTR); !a.Known || got != want {
			t.Errorf("%s: %s, want %s: %+v", name, got, want, a)
		}
	}
	a := w.c.View().Lookup(client, "_http._tcp.bare.treeline.")
	if a.SRV[0] != (Target{"any.rr.bare.eu.shop.prod.treeline.", vip(2), ip("fd74:6c6e:2::a1e:201"), 8080, 1}) {
		t.Errorf("%+v", a)
	}
	w.checkIndexes()
}

// The cluster is asked for the service of an address like for other records.
func TestTheNameOfAnUnknownAddressIsRequested(t *testing.T) {
	w, client := ready(t)
	const name4, name6 = "9.4.16.10.in-addr.arpa.", "9.0.4.0.0.1.a.0.0.0.0.0.0.0.0.0.0.0.0.0.1.0.0.0.E.6.c.6.4.7.d.f.ip6.arpa."
	want := wire.Subscription{Address: instanceAt(4, 9), For: svc("client")}
	eff := w.step(Query{Local: client, Name: name4})
	if ups := messages(eff); len(ups) != 1 || !slices.Equal(ups[0].Subscribe, []wire.Subscription{want}) || w.c.View().Lookup(client, name4).Known {
		t.Fatalf("%+v", eff.Send)
	}
	if eff := w.step(Query{Local: client, Name: name6}); len(messages(eff)) > 0 || w.c.View().Lookup(client, name6).Known {
		t.Fatalf("IPv6 address: %+v", eff.Send)
	}
	src := wire.Source{Address: want.Address, Rev: 1, Service: svc("caller"), Peer: peerRecord(4, 1)}
	eff = w.answer(wire.NetDown{Records: wire.Records{Sources: []wire.Source{src}}})
	if got := orders[Answered](eff); len(got) != 2 || got[0].Name != name4 {
		t.Fatalf("%+v", eff.Send)
	}
	for _, name := range []string{name4, name6} {
		if a := w.c.View().Lookup(client, name); a.PTR != "any.rr.caller.eu.shop.prod.treeline." {
			t.Fatalf("%s: %+v", name, a)
		}
	}
	w.checkIndexes()
	if _, waits := w.lookUp(client, "1.9.30.10.in-addr.arpa."); !waits {
		t.Fatal("a semantic address is not asked for")
	}
	w.answer(wire.NetDown{Records: wire.Records{Refused: []wire.Refusal{{Subscription: wire.Subscription{Address: vip(9), For: svc("client")}}}}})
	if a, waits := w.lookUp(client, "1.9.30.10.in-addr.arpa."); waits || a.Found || a.Failed {
		t.Fatalf("%+v", a)
	}
	for _, name := range []string{"0.5.16.10.in-addr.arpa.", "50.0.16.10.in-addr.arpa.", "8.8.8.8.in-addr.arpa."} { // addresses without an owner
		if eff := w.step(Query{Local: client, Name: name}); len(messages(eff)) > 0 || !w.c.View().Lookup(client, name).Known {
			t.Fatalf("%s: %+v", name, eff.Send)
		}
	}
	w.step(Link{false})
	w.pass(2 * time.Second)
	if a, waits := w.lookUp(client, "3.3.16.10.in-addr.arpa."); waits || !a.Failed {
		t.Fatalf("%+v", a)
	}
	w.checkIndexes()
	closed := wire.Source{Address: instanceAt(4, 8), Rev: 1, Service: "beta/x.y.z.w", Access: api.Access{Closed: true}, Peer: peerRecord(4, 1)}
	w.step(Link{true})
	w.step(Query{Local: client, Name: "8.4.16.10.in-addr.arpa."})
	w.answer(wire.NetDown{Records: wire.Records{Sources: []wire.Source{closed}}})
	if a := w.c.View().Lookup(client, "8.4.16.10.in-addr.arpa."); !a.Known || a.Found || a.PTR != "" {
		t.Fatalf("another tenant's name is reported: %+v", a)
	}
	w.checkIndexes()
}

// lookUp returns the answer of a resolver that does not wait; waits reports whether it would wait.
func (w *world) lookUp(client netip.Addr, name string) (a Answer, waits bool) {
	w.t.Helper()
	w.step(Query{Local: client, Name: name})
	a = w.c.View().Lookup(client, name)
	return a, !a.Known
}

// "example.com" may be a service because of the search list. While the cluster is disconnected, look-ups
// do not wait for its answer. Names that must be in the overlay fail.
func TestLookupsDoNotWaitForADisconnectedCluster(t *testing.T) {
	w, client := ready(t)
	w.restart() // the link comes up soon
	if _, waits := w.lookUp(client, "web.treeline."); !waits {
		t.Fatal("nobody waits for the link")
	}
	w.step(Link{true})
	w.step(Link{false})
	if _, waits := w.lookUp(client, "web.treeline."); !waits {
		t.Fatal("nobody waits for the link")
	}
	for _, name := range []string{"example.com.shop.prod.treeline.", "web.treeline."} {
		for range 3 {
			w.pass(10 * time.Second)
			eff := w.step(Query{Local: client, Name: name})
			if a := w.c.View().Lookup(client, name); !a.Known || a.Found || a.Failed || len(orders[Answered](eff)) != 1 {
				t.Fatalf("%s: %+v %+v", name, a, eff.Send)
			}
		}
	}
	for _, name := range []string{"any.rr.web.eu.shop.prod.treeline.", "3.instance.web.treeline.", "web.eu.shop.prod.of-tenant.beta.treeline."} {
		if a, waits := w.lookUp(client, name); waits || a.Found || !a.Failed {
			t.Fatalf("%s: %+v", name, a)
		}
	}
	eff := w.step(Link{true}) // the cluster is asked for all of them
	ups := messages(eff)
	if len(ups) != 1 || len(ups[0].Subscribe) != 3 {
		t.Fatalf("%+v", ups)
	}
	if a, waits := w.lookUp(client, "web.treeline."); !waits {
		t.Fatalf("%+v", a)
	}
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	if a, _ := w.lookUp(client, "web.treeline."); !a.Found {
		t.Fatalf("%+v", a)
	}
	w.checkIndexes()
}

// If the cluster is connected but does not answer, only the first look-up waits.
func TestOnlyTheFirstLookupWaitsForASilentCluster(t *testing.T) {
	w, client := ready(t)
	const name = "example.com.treeline."
	if _, waits := w.lookUp(client, name); !waits {
		t.Fatal("nobody waits")
	}
	w.pass(2 * time.Second)
	eff := w.step(Query{Local: client, Name: name})
	if a := w.c.View().Lookup(client, name); !a.Known || a.Found || len(orders[Answered](eff)) != 1 {
		t.Fatalf("%+v %+v", a, eff.Send)
	}
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{{Service: svc("example.com"), Rev: 1}}}})
	w.checkIndexes()
}

// A client that looks up more names than allowed gets all answers at once, including those of known
// names.
func TestLookupsBeyondTheBoundDoNotWait(t *testing.T) {
	w, client := ready(t)
	w.step(Query{Local: client, Name: "web.treeline."})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	asked := 0
	for i := range 1000 {
		name := fmt.Sprintf("site%d.com.shop.prod.treeline.", i)
		eff := w.step(Query{Local: client, Name: name})
		var refused []wire.Refusal
		for _, up := range messages(eff) {
			for _, k := range up.Subscribe {
				refused = append(refused, wire.Refusal{Subscription: k})
			}
		}
		if len(refused) > 0 {
			asked++
			eff = w.answer(wire.NetDown{Records: wire.Records{Refused: refused}})
		}
		if a := w.c.View().Lookup(client, name); !a.Known || a.Found || a.Failed || len(orders[Answered](eff)) != 1 {
			t.Fatalf("after %d: %+v %+v", i, a, eff.Send)
		}
		if a, _ := w.lookUp(client, "web.treeline."); !a.Found {
			t.Fatalf("after %d: %+v", i, a)
		}
		w.pass(10 * time.Millisecond) // 100 per second
	}
	if asked > subscriptions.Burst+220 {
		t.Fatalf("%d questions", asked)
	}
	if a, waits := w.lookUp(client, "any.rr.api.treeline."); waits || !a.Failed { // the service may exist
		t.Fatalf("%+v", a)
	}
	w.checkIndexes()
}

// Resolvers that change the case of each query (0x20) cause one subscription.
func TestAllSpellingsOfANameAreOneSubscription(t *testing.T) {
	w, client := ready(t)
	spelt := func(i int) string {
		b := []byte("webshopfrontend")
		for j := range b {
			if i>>j&1 == 1 {
				b[j] -= 'a' - 'A'
			}
		}
		return string(b) + ".treeline."
	}
	flood := func() (ups int) {
		for i := range 20000 {
			ups += len(messages(w.step(Query{Local: client, Name: spelt(i)})))
			w.now = w.now.Add(5 * time.Millisecond)
			if i == 0 && w.c.subs.Len() == 1 && !w.c.services.Has(svc("webShopFrontend")) {
				w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("webShopFrontend", 1, 1, 1)}}})
			}
			if a := w.c.View().Lookup(client, spelt(i)); !a.Found {
				t.Fatalf("%s: %+v", spelt(i), a)
			}
		}
		w.checkIndexes()
		return ups
	}
	if flood(); w.c.subs.Len() != 1 || len(w.docs) > 20 {
		t.Fatalf("%d wants, %d documents", w.c.subs.Len(), len(w.docs))
	}
	w.restart()
	w.step(Link{true})
	if flood(); w.c.subs.Len() != 1 {
		t.Fatalf("after a restart %d wants", w.c.subs.Len())
	}
}

// Look-ups of a name in several spellings wait for the same answer.
func TestLookupsInAnySpellingAreAnswered(t *testing.T) {
	w, client := ready(t)
	for _, name := range []string{"Web.treeline.", "wEb.treeline.", "WEB.Treeline."} {
		w.step(Query{Local: client, Name: name})
	}
	eff := w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	if got := orders[Answered](eff); len(got) != 1 || got[0].Name != "web.treeline." || w.c.subs.Len() != 1 {
		t.Fatalf("%+v", eff.Send)
	}
}

// A client may look up all instances of a service at once.
func TestManyNamesOfOneServiceMayWait(t *testing.T) {
	w, client := ready(t)
	for n := range 64 { // the resolver's limit of concurrent queries per client
		w.step(Query{Local: client, Name: fmt.Sprintf("%d.instance.web.treeline.", n)})
	}
	eff := w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	if n := len(orders[Answered](eff)); n != 64 {
		t.Fatalf("%d are reported", n)
	}
}

// Spellings of a name that does not exist cause only a few subscriptions.
func TestSpellingsOfAnUnknownNameAreBounded(t *testing.T) {
	w, client := ready(t)
	for i := range 1 << 11 {
		b := []byte("example.com")
		for j := range b {
			if i>>j&1 == 1 && b[j] != '.' {
				b[j] -= 'a' - 'A'
			}
		}
		w.step(Query{Local: client, Name: string(b) + ".treeline."})
		var refused []wire.Refusal
		for _, k := range w.subscriptions() {
			refused = append(refused, wire.Refusal{Subscription: k})
		}
		w.answer(wire.NetDown{Records: wire.Records{Refused: refused}})
		w.pass(10 * time.Millisecond)
	}
	if n := w.c.subs.Len(); n > 1+4 {
		t.Fatalf("%d wants", n)
	}
	w.checkIndexes()
}

// The cluster does not choose between two services that differ in case either: each spelling is a
// subscription.
func TestServicesThatDifferInCaseAreBothReachable(t *testing.T) {
	w, client := ready(t)
	ask := func(name string) (Answer, []wire.Subscription) {
		var adds []wire.Subscription
		for _, up := range messages(w.step(Query{Local: client, Name: name + ".treeline."})) {
			adds = append(adds, up.Subscribe...)
		}
		return w.c.View().Lookup(client, name+".treeline."), adds
	}
	folded := wire.Subscription{Service: svc("web"), For: svc("client")}
	if _, adds := ask("Web"); !slices.Equal(adds, []wire.Subscription{folded}) {
		t.Fatal(adds)
	}
	eff := w.answer(wire.NetDown{Records: wire.Records{Refused: []wire.Refusal{{Subscription: folded}}}})
	if len(orders[Answered](eff)) != 1 {
		t.Fatalf("%+v", eff.Send)
	}
	for i, name := range []string{"Web", "WEB"} {
		if a, adds := ask(name); a.Known && a.Found || !slices.Equal(adds, []wire.Subscription{{Service: svc(name), For: svc("client")}}) {
			t.Fatalf("%s: %+v %v", name, a, adds)
		}
		w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route(name, 1, byte(1+i), 1)}}})
	}
	for i, name := range []string{"Web", "WEB"} {
		if a, _ := ask(name); len(a.Addrs) != 1 || a.Addrs[0] != vip(byte(1+i)) {
			t.Fatalf("%s: %+v", name, a)
		}
	}
	if a, _ := ask("web"); a.Found {
		t.Fatalf("%+v", a)
	}
	w.checkIndexes()
}

func TestAnAmbiguousSpellingIsNotResolved(t *testing.T) {
	w, client := ready(t)
	for _, name := range []string{"Web", "WEB"} {
		w.step(Query{Local: client, Name: name + ".treeline."})
	}
	a, b := route("Web", 1, 1, 1), route("WEB", 1, 2, 1)
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{a, b}}})
	if a := w.c.View().Lookup(client, "Web.treeline."); len(a.Addrs) != 1 || a.Addrs[0] != vip(1) {
		t.Fatalf("%+v", a)
	}
	if a := w.c.View().Lookup(client, "web.treeline."); a.Found {
		t.Fatalf("%+v", a)
	}
	w.checkIndexes()
}

func TestATraceShowsTheOutcome(t *testing.T) {
	w, client := ready(t)
	from := svc("client").Instance(0)
	trace := func(to string) string {
		t.Helper()
		tr, _, err := w.c.View().Trace(from, to)
		if err != nil {
			t.Fatal(err)
		}
		out := ""
		for _, s := range tr.Steps {
			out += fmt.Sprintf("%s %v, ", s.What, s.OK)
		}
		return out + fmt.Sprint(tr.OK)
	}
	if got := trace("10.30.1.1"); got != "route false, false" {
		t.Error(got)
	}
	if _, ask, _ := w.c.View().Trace(from, "10.30.1.1"); ask != (Miss{Local: client, Remote: vip(1)}) {
		t.Errorf("a flow would ask for the address: %+v", ask)
	}
	if _, ask, _ := w.c.View().Trace(from, "web.treeline."); ask != (Query{Local: client, Name: "web.treeline."}) {
		t.Errorf("a flow would ask for the name: %+v", ask)
	}
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1, 2)}}})
	for to, want := range map[string]string{
		"10.30.1.1": "route true, access true, backend true, path true, reply true, backend true, path true, reply true, true",
		"192.0.2.1": "route true, true", "10.16.0.2": "route true, access true, backend true, path true, reply true, true",
		"10.16.2.1": "route true, access true, backend true, path true, reply true, true", "fd74:6c6e:2::a1e:101": "route true, access true, backend true, path true, reply true, backend true, path true, reply true, true",
	} {
		if got := trace(to); got != want {
			t.Errorf("%s: %s, want %s", to, got, want)
		}
	}
	w.step(Query{Local: client, Name: "web.treeline."})
	if got := trace("web"); got != "name true, route true, access true, backend true, path true, reply true, backend true, path true, reply true, true" {
		t.Error(got)
	}
	w.step(Path{Key: key(1), Silent: true})
	w.step(Path{Key: key(2), Silent: true})
	if got := trace("10.30.1.1"); got != "route true, access true, backend true, path false, reply true, backend true, path false, reply true, false" {
		t.Error(got)
	}
	if _, _, err := w.c.View().Trace(svc("nobody").Instance(0), "web"); !errors.Is(err, api.ErrNotFound) {
		t.Error(err)
	}
	if r := w.c.View().Routes(); len(r) != 1 || r[0].Service != svc("web") || len(w.c.View().Peers()) != 2 {
		t.Errorf("%+v", r)
	}
	w.step(Query{Local: client, Name: "wbe.treeline."}) // misspelt
	w.answer(wire.NetDown{Records: wire.Records{Refused: []wire.Refusal{{Subscription: wire.Subscription{Service: svc("wbe"), For: svc("client")}}}}})
	if tr, ask, _ := w.c.View().Trace(from, "wbe.treeline."); tr.OK || ask != nil || len(tr.Steps) != 1 || !strings.HasPrefix(tr.Steps[0].Detail, "no service is called wbe.treeline.") {
		t.Errorf("%+v, %+v", tr, ask)
	}
}

func TestClosestWithoutMeasurementsFollowsCoordinates(t *testing.T) {
	w, client := ready(t)
	closest := ip("10.30.1.2")
	w.step(Miss{Local: client, Remote: closest})
	r := route("web", 1, 1, 1, 2)
	r.Addresses.Closest = closest
	far, near := vivaldi.New(), vivaldi.New()
	far.Vec[0] = 0.2
	r.Peers[0].Coord, r.Peers[1].Coord = &far, &near
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if got := w.backendsOf(closest); got != "10.16.2.1*1 " {
		t.Fatal(got)
	}
	r.Rev, r.Peers = 2, slices.Clone(r.Peers) // both nodes moved
	r.Peers[0].Rev, r.Peers[1].Rev = 2, 2
	r.Peers[0].Coord, r.Peers[1].Coord = &near, &far
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	w.pass(4 * time.Second)
	if got := w.backendsOf(closest); got != "10.16.2.1*1 " {
		t.Fatalf("at once: %s", got)
	}
	w.pass(10 * time.Second)
	if got := w.backendsOf(closest); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	w.checkIndexes()
}
