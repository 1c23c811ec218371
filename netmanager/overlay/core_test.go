package overlay

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/endpoints"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/services"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

func vip(n byte) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, n, 1}) }

// backendsOf returns the plane's backends behind an address, with weights.
func (w *world) backendsOf(v netip.Addr) string {
	s, ok := w.plane.Services[v]
	if !ok {
		return "none"
	}
	out := ""
	for _, b := range s.Backends {
		out += fmt.Sprintf("%s*%d ", b.Address, b.Weight)
	}
	return out
}

func TestAnAttachmentKeepsItsAddress(t *testing.T) {
	w := newWorld(t, Config{})
	if eff := w.step(attachOf("web", 0, 1)); !errors.Is(eff.Err, api.ErrUnavailable) {
		t.Fatal(eff.Err)
	}
	w.step(Down{wire.NetDown{Rev: 1, Lease: theLease()}})
	w.step(attachOf("web", 0, 1))
	first, _ := w.c.View().Attached(attachOf("web", 0, 1).Key)
	if first.Address != ip("10.16.0.2") || first.Address6 != ip("fd74:6c6e:1::a10:2") || first.MTU != 1400 {
		t.Fatalf("%+v", first)
	}
	again := attachOf("web", 0, 1)
	again.NetNS = "/proc/2/ns/net"
	w.step(again)
	w.checkIndexes()
	w.restart()
	w.checkIndexes()
	if a, _ := w.c.View().Attached(again.Key); a != first || w.c.View().Attachments()[0].NetNS != again.NetNS {
		t.Fatalf("%+v", a)
	}
	w.step(attachOf("web", 0, 2)) // a new placement
	if a, _ := w.c.View().Attached(attachOf("web", 0, 2).Key); a.Address == first.Address {
		t.Fatalf("%+v", a)
	}
	w.step(Detach{attachOf("web", 0, 1).Key})
	if eff := w.step(attachOf("web", 0, 1)); !errors.Is(eff.Err, api.ErrConflict) {
		t.Fatalf("an older placement: %v", eff.Err)
	}
	w.checkIndexes()
}

func TestAnExhaustedSubnetIsAnErrorAndFreedAddressesAreQuarantined(t *testing.T) {
	w, _ := ready(t)
	n := 1
	for ; ; n++ {
		if eff := w.step(attachOf("web", n, 1)); eff.Err != nil {
			if !errors.Is(eff.Err, api.ErrFull) || errors.Is(eff.Err, api.ErrUnavailable) { // ErrUnavailable would make the caller wait
				t.Fatal(eff.Err)
			}
			break
		}
	}
	if n != 61 || w.c.View().Status().Error == "" {
		t.Fatalf("%d instances, %+v", n, w.c.View().Status())
	}
	w.step(Detach{attachOf("web", 7, 1).Key})
	w.step(Detach{attachOf("web", 7, 1).Key}) // again
	w.pass(endpoints.MinQuarantine - time.Second)
	w.restart() // does not shorten the quarantine
	w.pass(endpoints.MinQuarantine - time.Second)
	if eff := w.step(attachOf("api", 0, 1)); eff.Err == nil {
		t.Fatal("an address that rests was handed out")
	}
	w.pass(2 * time.Second)
	if eff := w.step(attachOf("api", 0, 1)); eff.Err != nil {
		t.Fatal(eff.Err)
	}
	if len(w.docs) != 0 {
		for k := range w.docs {
			if k[0] == endpoints.KindFreed {
				t.Fatalf("%v is left", k)
			}
		}
	}
	w.checkIndexes()
}

func TestAPortOfTheNodeIsPublishedOnce(t *testing.T) {
	w, _ := ready(t)
	a, b := attachOf("web", 0, 1), attachOf("web", 1, 1)
	a.Ports = []api.PortMap{{Host: 80, Instance: 8080, Protocol: "tcp"}}
	b.Ports = a.Ports
	w.step(a)
	if eff := w.step(b); !errors.Is(eff.Err, api.ErrConflict) {
		t.Fatal(eff.Err)
	}
	b.Ports = []api.PortMap{{Host: 80, Instance: 8080, Protocol: "udp"}}
	if eff := w.step(b); eff.Err != nil {
		t.Fatal(eff.Err)
	}
	w.step(Detach{a.Key})
	b.Ports = append(b.Ports, a.Ports...)
	if eff := w.step(b); eff.Err != nil {
		t.Fatal(eff.Err)
	}
	w.checkIndexes()
}

func TestANewLeaseKeepsAttachedInstances(t *testing.T) {
	w, client := ready(t)
	l := theLease()
	l.Rev, l.Subnet = 2, cidr("10.16.9.0/26")
	w.answer(wire.NetDown{Lease: l})
	w.step(attachOf("web", 0, 1))
	if a, _ := w.c.View().Attached(attachOf("web", 0, 1).Key); a.Address != ip("10.16.9.2") {
		t.Fatalf("%+v", a)
	}
	if _, ok := w.plane.Endpoints[client]; !ok || w.plane.Node.Subnet != l.Subnet {
		t.Fatal("what was attached lost its address")
	}
	w.checkIndexes()
	w.restart()
	w.step(Detach{attachOf("client", 0, 1).Key})
	w.checkIndexes()
}

func TestTheFirstPacketSubscribesAndIsReleased(t *testing.T) {
	w, client := ready(t)
	eff := w.step(Miss{Local: client, Remote: vip(1)})
	want := wire.Subscription{Address: vip(1), For: svc("client")}
	if ups := messages(eff); len(ups) != 1 || !slices.Equal(ups[0].Subscribe, []wire.Subscription{want}) {
		t.Fatalf("%+v", eff.Send)
	}
	if eff := w.step(Miss{Local: client, Remote: vip(1)}); len(messages(eff)) > 0 { // the cluster is asked only once
		t.Fatalf("%+v", eff.Send)
	}
	eff = w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1, 2)}}})
	var kinds []string
	for _, e := range eff.Send {
		kinds = append(kinds, fmt.Sprintf("%s %T", e.To, e.Msg))
	}
	if !slices.Equal(kinds, []string{"tunnel overlay.TunnelPeer", "tunnel overlay.TunnelPeer", "plane plane.Change", "hold overlay.Release"}) {
		t.Fatal(kinds)
	}
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 10.16.2.1*1 " {
		t.Fatal(got)
	}
	from, to := w.c.services.Ident(svc("client")), w.c.services.Ident(svc("web"))
	if !w.plane.Allowed[plane.Pair{From: from, To: to}] || !w.plane.Allowed[plane.Pair{From: to, To: from}] {
		t.Fatal(w.plane.Allowed)
	}
	w.checkIndexes()
	w.restart() // the tables are as before
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 10.16.2.1*1 " || w.c.services.Ident(svc("web")) != to {
		t.Fatal(got)
	}
	w.checkIndexes()
}

func TestLostRequestsAreRepeatedWithBackoff(t *testing.T) {
	w, client := ready(t)
	w.answer(wire.NetDown{})
	start := w.now
	w.step(Miss{Local: client, Remote: vip(1)})
	var at []time.Duration
	for range 60 {
		w.now = w.now.Add(500 * time.Millisecond)
		for _, up := range messages(w.step(Tick{})) {
			if !up.Whole {
				at = append(at, w.now.Sub(start))
			}
		}
	}
	if want := []time.Duration{500, 1500, 3500, 7500, 15500}; len(at) != len(want) || at[0] != want[0]*time.Millisecond || at[4] != want[4]*time.Millisecond {
		t.Fatal(at)
	}
}

func TestARefusalIsValidForAWhileAndTheSubscriptionStays(t *testing.T) {
	w, client := ready(t)
	want := wire.Subscription{Address: vip(1), For: svc("client")}
	w.step(Miss{Local: client, Remote: vip(1)})
	eff := w.answer(wire.NetDown{Records: wire.Records{Refused: []wire.Refusal{{Subscription: want}}}})
	if got := orders[Refuse](eff); len(got) != 1 || got[0] != (Refuse{Local: client, Remote: vip(1)}) {
		t.Fatalf("%+v", eff.Send)
	}
	w.pass(4 * time.Second)
	if eff := w.step(Miss{Local: client, Remote: vip(1)}); len(orders[Refuse](eff)) != 1 || len(messages(eff)) > 0 {
		t.Fatalf("%+v", eff.Send)
	}
	w.pass(2 * time.Second)
	if eff := w.step(Miss{Local: client, Remote: vip(1)}); len(orders[Refuse](eff)) > 0 || len(messages(eff)) != 1 {
		t.Fatalf("%+v", eff.Send)
	}
	if eff := w.answer(wire.NetDown{}); len(orders[Refuse](eff)) != 1 { // nothing has changed
		t.Fatalf("%+v", eff.Send)
	}
	w.checkIndexes()
	w.pass(3 * time.Minute)
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}, RemovedRefusals: []wire.Subscription{want}}}) // the service is created
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	w.checkIndexes()
}

func TestCallsWithoutAccessAreDenied(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	r := route("web", 1, 1, 1)
	r.Access.Closed = true
	eff := w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	from, to := w.c.services.Ident(svc("client")), w.c.services.Ident(svc("web"))
	// web may call client, because client has no list.
	if w.plane.Allowed[plane.Pair{From: from, To: to}] || !w.plane.Allowed[plane.Pair{From: to, To: from}] || len(orders[Release](eff)) != 1 {
		t.Fatalf("%+v %+v", w.plane.Allowed, eff.Send)
	}
	r.Rev, r.Access.Closed = 2, false
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if !w.plane.Allowed[plane.Pair{From: from, To: to}] {
		t.Fatal("the new list does not count")
	}
	w.checkIndexes()
}

func TestIdleSubscriptionsEndAndUsedOnesAreRenewed(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.step(Miss{Local: client, Remote: vip(2)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1), route("api", 1, 2, 1)}}})
	used := plane.Usage{Sources: map[netip.Addr]uint64{}}
	renewed := 0
	for n := range uint64(30) {
		for _, up := range w.pass(20 * time.Second) {
			if up.Whole {
				renewed++
			}
		}
		w.answer(wire.NetDown{})
		used.Sources = map[netip.Addr]uint64{instanceAt(1, 1): n} // answers of one long flow to web
		w.step(Used{used})
		w.checkIndexes()
	}
	if w.backendsOf(vip(1)) == "none" || w.backendsOf(vip(2)) != "none" || renewed < 5 || renewed > 10 {
		t.Fatalf("%s, %s, renewed %d times", w.backendsOf(vip(1)), w.backendsOf(vip(2)), renewed)
	}
	for k := range w.docs {
		if k[0] == services.KindRoute && k[1] == string(svc("api")) {
			t.Fatal("it is still stored")
		}
	}
}

func TestAFloodOfUnknownDestinationsIsBounded(t *testing.T) {
	w, client := ready(t)
	w.step(attachOf("victim", 0, 1))
	victim, _ := w.c.View().Attached(attachOf("victim", 0, 1).Key)
	ups, adds := 0, 0
	for n := range 20000 {
		if n%100 == 0 {
			w.now = w.now.Add(time.Second)
		}
		eff := w.step(Miss{Local: client, Remote: netip.AddrFrom4([4]byte{10, 30, byte(n >> 8), byte(n)})})
		for _, up := range messages(eff) {
			ups++
			adds += len(up.Subscribe)
		}
	}
	if w.c.subs.Len() > 260 || len(w.docs) > 20 {
		t.Fatalf("%d wants, %d documents", w.c.subs.Len(), len(w.docs))
	}
	if ups > 4200+200*20 {
		t.Fatalf("%d messages with %d wants", ups, adds)
	}
	eff := w.step(Miss{Local: victim.Address, Remote: ip("10.30.200.200")})
	if len(messages(eff)) != 1 {
		t.Fatal("another instance starves")
	}
	w.checkIndexes()
}

func TestTheServiceWithTheMostSubscriptionsMakesRoom(t *testing.T) {
	w := newWorld(t, Config{MaxSubscriptions: 40, MaxOpen: 100})
	w.step(Link{true})
	w.step(Down{wire.NetDown{Rev: 1, Lease: theLease()}})
	var at [2]netip.Addr
	for i, name := range []string{"greedy", "modest"} {
		w.step(attachOf(name, 0, 1))
		a, _ := w.c.View().Attached(attachOf(name, 0, 1).Key)
		at[i] = a.Address
	}
	for n := range byte(60) {
		w.step(Miss{Local: at[0], Remote: vip(n)})
	}
	for n := range byte(10) {
		w.step(Miss{Local: at[1], Remote: vip(100 + n)})
	}
	if g, m := len(w.c.subs.Of(svc("greedy"))), len(w.c.subs.Of(svc("modest"))); g != 30 || m != 10 {
		t.Fatalf("greedy has %d, modest %d", g, m)
	}
	w.checkIndexes()
}

func TestFlowsOfADeadBackendEndAndASilentPeerIsAvoided(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1, 2, 3)}}})
	eff := w.step(Path{Key: key(2), Kind: api.PathDirect, Silent: true})
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 10.16.3.1*1 " {
		t.Fatal(got)
	}
	if ch := orders[plane.Change](eff); len(ch) != 1 || len(ch[0].End) > 0 || !slices.Equal(ch[0].Retry, []netip.Addr{instanceAt(2, 1)}) {
		t.Fatalf("%+v", ch)
	}
	if ch := orders[plane.Change](w.step(Path{Key: key(2), Kind: api.PathDirect, Silent: true})); len(ch) > 0 {
		t.Fatalf("it is doubted once: %+v", ch)
	}
	w.step(Path{Key: key(1), Kind: api.PathDirect, Silent: true})
	w.step(Path{Key: key(3), Kind: api.PathDirect, Silent: true})
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 10.16.2.1*1 10.16.3.1*1 " {
		t.Fatalf("all are silent: %s", got)
	}
	for n := range byte(3) {
		w.step(Path{Key: key(n + 1), Kind: api.PathDirect})
	}
	r := route("web", 2, 1, 1, 2, 3)
	r.Backends[0].State = api.BackendDraining
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if got := w.backendsOf(vip(1)); got != "10.16.2.1*1 10.16.3.1*1 " {
		t.Fatal(got)
	}
	r.Rev, r.Backends = 3, slices.Clone(r.Backends[1:])
	r.Backends[0].Epoch = 2
	eff = w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if ch := orders[plane.Change](eff); len(ch) != 1 || !slices.Equal(ch[0].End, []netip.Addr{instanceAt(1, 1), instanceAt(2, 1)}) {
		t.Fatalf("%+v", ch)
	}
	eff = w.answer(wire.NetDown{Records: wire.Records{RemovedRoutes: []api.ServiceID{svc("web")}}})
	if ch := orders[plane.Change](eff); len(ch) != 1 || len(ch[0].End) != 2 || w.backendsOf(vip(1)) != "none" {
		t.Fatalf("%+v", ch)
	}
	w.checkIndexes()
}

func TestWeightsFollowLoad(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	r := route("web", 1, 1, 1, 2, 3)
	for _, c := range []struct {
		loads [3]uint8
		want  string
	}{
		{[3]uint8{0, 0, 0}, "10.16.1.1*1 10.16.2.1*1 10.16.3.1*1 "},
		{[3]uint8{50, 50, 50}, "10.16.1.1*1 10.16.2.1*1 10.16.3.1*1 "},
		{[3]uint8{20, 60, 100}, "10.16.1.1*13 10.16.2.1*6 10.16.3.1*1 "},
		{[3]uint8{24, 55, 98}, "10.16.1.1*13 10.16.2.1*6 10.16.3.1*1 "},
		{[3]uint8{90, 1, 1}, "10.16.1.1*1 10.16.2.1*8 10.16.3.1*8 "},
		{[3]uint8{50, 0, 75}, "10.16.1.1*4 10.16.2.1*3 10.16.3.1*2 "},
	} {
		r.Rev++
		r.Backends = slices.Clone(r.Backends)
		for i := range r.Backends {
			r.Backends[i].Load = c.loads[i]
		}
		w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
		if got := w.backendsOf(vip(1)); got != c.want {
			t.Errorf("%v: %s, want %s", c.loads, got, c.want)
		}
		w.checkIndexes()
	}
}

func TestClosestFollowsMeasuredRoundTripsWithHysteresis(t *testing.T) {
	w, client := ready(t)
	closest := ip("10.30.1.2")
	w.step(Miss{Local: client, Remote: closest})
	r := route("web", 1, 1, 1, 2, 3)
	r.Addresses.Closest = closest
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	ms := time.Millisecond
	see := func(a, b, c time.Duration) {
		for i, d := range []time.Duration{a, b, c} {
			w.step(Path{Key: key(byte(i + 1)), Kind: api.PathDirect, RTT: d})
		}
		w.checkIndexes()
	}
	for range 4 {
		see(5*ms, 30*ms, 80*ms)
	}
	if got := w.backendsOf(closest); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	for n := range 20 { // jitter of 10 %
		see(50*ms*time.Duration(95+n%2*10)/100, 52*ms, 80*ms)
		if got := w.backendsOf(closest); n > 3 && got != "10.16.1.1*1 10.16.2.1*1 " {
			t.Fatalf("after %d: %s", n, got)
		}
	}
	for range 2 {
		see(80*ms, 30*ms, 5*ms)
	}
	if got := w.backendsOf(closest); got != "10.16.1.1*1 10.16.2.1*1 " {
		t.Fatalf("after two updates: %s", got)
	}
	for range 3 {
		see(80*ms, 30*ms, 5*ms)
	}
	if got := w.backendsOf(closest); got != "10.16.3.1*1 " {
		t.Fatal(got)
	}
	w.step(Path{Key: key(3), Kind: api.PathDirect, RTT: 5 * ms, Silent: true})
	if got := w.backendsOf(closest); got != "10.16.1.1*1 10.16.2.1*1 " && got != "10.16.2.1*1 " {
		t.Fatalf("the chosen one is dead: %s", got)
	}
	w.checkIndexes()
}

func TestLocalInstancesAreReachedWithoutTheCluster(t *testing.T) {
	w, client := ready(t)
	web := attachOf("web", 5, 3)
	web.Addresses = route("web", 1, 1).Addresses
	w.step(web)
	here, _ := w.c.View().Attached(web.Key)
	w.step(listens(web))
	eff := w.step(Miss{Local: client, Remote: vip(1)})
	if got := w.backendsOf(vip(1)); got != here.Address.String()+"*1 " || len(orders[Release](eff)) != 1 || len(messages(eff)) != 1 {
		t.Fatalf("%s %+v", got, eff.Send)
	}
	w.checkIndexes()
	r := route("web", 1, 1, 1)
	// The cluster has another placement of it on this node, which is wrong.
	r.Backends = append(r.Backends, api.Backend{Instance: svc("web").Instance(9), Epoch: 1, Address: ip("10.16.0.40"), Peer: key(0), State: api.BackendUp})
	r.Peers = append(r.Peers, api.Peer{Key: key(0), Rev: 1, Subnets: []netip.Prefix{cidr("10.16.0.0/26")}})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if got := w.backendsOf(vip(1)); got != here.Address.String()+"*1 10.16.1.1*1 " {
		t.Fatal(got)
	}
	w.step(Drain{web.Key})
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	eff = w.step(Detach{web.Key})
	if ch := orders[plane.Change](eff); len(ch) != 1 || !slices.Equal(ch[0].End, []netip.Addr{here.Address}) {
		t.Fatalf("%+v", ch)
	}
	w.checkIndexes()
}

func TestAnUnknownSourceIsRequested(t *testing.T) {
	w, client := ready(t)
	remote := instanceAt(4, 9)
	eff := w.step(Miss{Local: client, Remote: w.c.lease.Ranges.To6(remote)})
	if ups := messages(eff); len(ups) != 1 || ups[0].Subscribe[0] != (wire.Subscription{Address: remote, For: svc("client")}) {
		t.Fatalf("%+v", eff.Send)
	}
	src := wire.Source{Address: remote, Rev: 1, Service: svc("caller"), Peer: peerRecord(4, 1)}
	eff = w.answer(wire.NetDown{Records: wire.Records{Sources: []wire.Source{src}}})
	if len(orders[Release](eff)) != 1 || w.plane.Sources[remote].Ident != w.c.services.Ident(svc("caller")) {
		t.Fatalf("%+v", eff.Send)
	}
	w.checkIndexes()
	w.answer(wire.NetDown{Records: wire.Records{RemovedSources: []netip.Addr{remote}}})
	if len(w.plane.Sources)+len(w.plane.Peers)+len(w.tunnel) > 0 {
		t.Fatalf("%+v", w.plane)
	}
	w.checkIndexes()
}

func TestAHandshakeOfAnUnknownPeerRequestsItsSubnet(t *testing.T) {
	w, _ := ready(t)
	eff := w.step(PeerUnknown{Key: key(7), Claim: instanceAt(7, 5)})
	if ups := messages(eff); len(ups) != 1 || ups[0].Subscribe[0] != (wire.Subscription{Address: instanceAt(7, 0)}) {
		t.Fatalf("%+v", eff.Send)
	}
	eff = w.answer(wire.NetDown{Records: wire.Records{Peers: []api.Peer{peerRecord(7, 1)}}})
	if got := orders[TunnelPeer](eff); len(got) != 1 || got[0].Key != key(7) {
		t.Fatalf("%+v", eff.Send)
	}
	w.checkIndexes()
	n := 0
	for i := range 1000 { // many keys without a record
		n += len(messages(w.step(PeerUnknown{Key: key(9), Claim: netip.AddrFrom4([4]byte{10, 17, byte(i >> 2), byte(i << 6)})})))
	}
	if n > subscriptions.Burst || w.c.subs.Len() > subscriptions.Burst+1 {
		t.Fatalf("%d questions", n)
	}
	w.checkIndexes()
}

func TestManyNeighboursAreAcceptedAtOnceAndUnknownNodesAreNot(t *testing.T) {
	w, client := ready(t)
	neighbour := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 30, byte(100 + i>>8), byte(i)}) }
	refused := 0
	for i := range 1000 {
		eff := w.step(Miss{Local: client, Remote: neighbour(i)})
		refused += len(orders[Refuse](eff))
		r := route(fmt.Sprintf("far%d", i), 1, 1, 1, 2)
		r.Addresses = api.ServiceAddresses{RoundRobin: neighbour(i)}
		w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	}
	if refused > 0 || len(w.plane.Services) < 1000 {
		t.Fatalf("%d were refused, %d are routed", refused, len(w.plane.Services))
	}
	w.checkIndexes()
	asked := 0
	for i := range 1000 { // the cluster refuses all of these addresses
		nobody := netip.AddrFrom4([4]byte{10, 30, byte(200 + i>>8), byte(i)})
		if len(messages(w.step(Miss{Local: client, Remote: nobody}))) > 0 {
			asked++
		}
		w.answer(wire.NetDown{Records: wire.Records{Refused: []wire.Refusal{{Subscription: wire.Subscription{Address: nobody, For: attachOf("client", 0, 1).Instance.Service()}}}}})
	}
	if asked > subscriptions.Burst {
		t.Fatalf("%d questions that led nowhere", asked)
	}
	w.checkIndexes()
}

func TestALookupOfARefusedNameDoesNotWait(t *testing.T) {
	w, client := ready(t)
	// "example.com" through the search list could be service example of namespace com.
	const name = "example.com.treeline."
	eff := w.step(Query{Local: client, Name: name})
	ups := messages(eff)
	if len(ups) != 1 || len(ups[0].Subscribe) != 1 || len(orders[Answered](eff)) > 0 {
		t.Fatalf("%+v", eff.Send)
	}
	w.answer(wire.NetDown{Records: wire.Records{Refused: []wire.Refusal{{Subscription: ups[0].Subscribe[0]}}}})
	w.pass(time.Minute)
	eff = w.step(Query{Local: client, Name: name})
	if a := w.c.View().Lookup(client, name); len(messages(eff)) != 1 || len(orders[Answered](eff)) != 1 || !a.Known || a.Found {
		t.Fatalf("%+v %+v", a, eff.Send)
	}
	w.checkIndexes()
}

func TestRecordsStayWhileTheClusterIsDisconnected(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	w.step(Link{false})
	used := plane.Usage{}
	for n := range uint64(40) {
		w.pass(time.Minute)
		used.Services = map[netip.Addr]uint64{vip(1): n}
		w.step(Used{used})
	}
	w.restart()
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	w.checkIndexes()
}

// Unused records stay too: for a quiet flow, a client that comes back after a while, and for callers, on
// the server's node.
func TestIdleRecordsStayWhileTheClusterIsDisconnected(t *testing.T) {
	w, client := ready(t)
	caller, stranger := instanceAt(4, 9), instanceAt(7, 5)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.step(Miss{Local: client, Remote: caller})
	w.step(PeerUnknown{Key: key(7), Claim: stranger})
	w.answer(wire.NetDown{
		Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}, Sources: []wire.Source{{Address: caller, Rev: 1, Service: svc("caller"), Peer: peerRecord(4, 1)}}, Peers: []api.Peer{peerRecord(7, 1)}},
	})
	w.step(Miss{Local: client, Remote: vip(9)}) // this is not answered
	w.step(Link{false})
	there := func(when string) {
		t.Helper()
		w.checkIndexes()
		if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " || len(w.plane.Peers) != 3 || w.plane.Sources[caller].Ident == 0 {
			t.Fatalf("%s: %s, %d peers, %v", when, got, len(w.plane.Peers), w.plane.Sources)
		}
	}
	w.pass(time.Hour)
	there("after an hour")
	if w.c.subs.Len() != 3 {
		t.Fatalf("%d wants: what leads nowhere is kept", w.c.subs.Len())
	}
	for _, to := range []netip.Addr{vip(1), caller} {
		if eff := w.step(Miss{Local: client, Remote: to}); len(orders[Release](eff)) != 1 {
			t.Fatalf("a new flow to %s: %+v", to, eff.Send)
		}
	}
	w.restart()
	w.pass(time.Hour)
	there("after a restart")
	w.step(Detach{attachOf("client", 0, 1).Key}) // and attached again
	w.pass(time.Minute)
	w.step(attachOf("client", 0, 2))
	there("for the next instance")
	w.step(Link{true}) // subscriptions are renewed
	w.pass(4 * time.Minute)
	there("when the cluster is back")
	w.pass(3 * time.Minute)
	w.checkIndexes()
	if w.c.subs.Len()+len(w.plane.Peers)+len(w.plane.Services)+len(w.plane.Sources) > 0 {
		t.Fatalf("it is kept for good: %v", w.plane)
	}
}

func TestLateAndForeignMessagesAreDropped(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 5, 1, 1)}}})
	boot := w.c.boot
	_, rev := w.c.subs.Position()
	w.step(Down{wire.NetDown{Boot: boot, Rev: rev - 1, Whole: true}})
	w.step(Down{wire.NetDown{Boot: boot - 1, Rev: rev + 9, Whole: true}})
	w.step(Down{wire.NetDown{Boot: wire.MaxBoot, Rev: rev + 9, Whole: true}})
	w.step(Down{wire.NetDown{Boot: boot, Rev: rev, Records: wire.Records{Routes: []api.Route{route("web", 4, 1, 2)}}}})
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	w.step(Down{wire.NetDown{Boot: boot, Rev: rev + 1, Whole: true, Records: wire.Records{Routes: []api.Route{route("web", 4, 1, 2)}}}})
	if got := w.backendsOf(vip(1)); got != "10.16.2.1*1 " {
		t.Fatalf("a whole replaces: %s", got)
	}
	w.checkIndexes()
}

// A late message of an earlier process reached the cluster after the store was lost and the clock went back.
func TestABootNumberBelowTheClustersIsRaised(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 5, 1, 1)}}})
	higher := w.c.boot + 5000
	ups := messages(w.step(Down{wire.NetDown{Boot: higher, Rev: 99, Whole: true}}))
	if len(ups) != 1 || ups[0].Boot <= higher || !ups[0].Whole || ups[0].Self == nil {
		t.Errorf("the cluster gets %+v, want all with a boot number above %d", ups, higher)
	}
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " {
		t.Errorf("the other process's message changed the route: %q", got)
	}
	w.restart()
	if w.c.boot <= higher {
		t.Errorf("after a restart its boot number is %d, want more than %d", w.c.boot, higher)
	}
}

func TestABackendOutsideItsPeersSubnetIsIgnored(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	r := route("web", 1, 1, 1, 2)
	r.Backends[0].Address = instanceAt(2, 50) // node 1 claims an address of node 2
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if got := w.backendsOf(vip(1)); got != "10.16.2.1*1 " {
		t.Fatal(got)
	}
	w.step(Miss{Local: client, Remote: vip(2)})
	bad := route("api", 1, 2, 3)
	bad.Peers[0].Subnets = []netip.Prefix{cidr("10.16.0.0/26"), cidr("10.16.0.0/13"), cidr("0.0.0.0/0"), {}, cidr("fd00::/64")}
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{bad}}})
	if got := w.plane.Peers[key(3)].Subnets; len(got) > 0 {
		t.Fatalf("a peer has %s", got)
	}
	w.checkIndexes()
}

// TestTheTunnelAcceptsOnlyPacketsFromThePeersSubnet gives records, in addition to the node's subnet, prefixes
// that would let the peer send from addresses of other nodes.
func TestTheTunnelAcceptsOnlyPacketsFromThePeersSubnet(t *testing.T) {
	w, client := ready(t)
	good := cidr("10.16.3.0/26")
	bad := []netip.Prefix{
		netip.PrefixFrom(ip("10.16.16.0"), 0), cidr("0.0.0.0/0"), cidr("10.16.0.0/13"), cidr("10.16.3.0/25"), cidr("10.16.3.64/27"),
		netip.PrefixFrom(ip("10.16.3.70"), 26), theLease().Subnet, cidr("10.30.0.0/26"), cidr("192.168.0.0/26"),
		{},
		cidr("fd00::/64"),
	}
	w.step(Miss{Local: client, Remote: vip(2)})
	r := route("api", 1, 2, 3)
	r.Peers[0].Subnets = append([]netip.Prefix{good}, bad...)
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{r}}})
	if got := w.tunnel[key(3)].Subnets; !slices.Equal(got, []netip.Prefix{good}) {
		t.Errorf("the tunnel takes packets of %s from the peer, want %s", got, good)
	}
	if got := w.plane.Peers[key(3)].Subnets; !slices.Equal(got, []netip.Prefix{good}) {
		t.Errorf("the kernel takes packets of %s from the peer, want %s", got, good)
	}
	w.checkIndexes()

	// Another node of the cluster has the subnet now. The tunnel must get the change at once.
	w.step(Miss{Local: client, Remote: vip(1)})
	other := route("web", 2, 1, 4)
	other.Peers[0].Subnets, other.Peers[0].Rev = []netip.Prefix{good}, 9
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{other}}})
	if a, b := w.tunnel[key(3)].Subnets, w.tunnel[key(4)].Subnets; len(a) > 0 || !slices.Equal(b, []netip.Prefix{good}) {
		t.Errorf("after the subnet went from one peer to another the tunnel has %s and %s", a, b)
	}
	w.checkIndexes()

	// A peer of another cluster cannot take the subnet, regardless of its record.
	w.step(Miss{Local: client, Remote: vip(3)})
	foreign := route("db", 3, 3, 5)
	foreign.Peers[0].Subnets, foreign.Peers[0].Rev, foreign.Peers[0].Cluster, foreign.Peers[0].Node = []netip.Prefix{good}, 1<<60, "c9", ""
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{foreign}}})
	if a, b := w.tunnel[key(4)].Subnets, w.tunnel[key(5)].Subnets; len(b) > 0 || !slices.Equal(a, []netip.Prefix{good}) {
		t.Errorf("another cluster's peer has %s, our own %s", b, a)
	}
	w.checkIndexes()
}

func TestSubscriptionsMoveToAnotherServiceThatUsesThem(t *testing.T) {
	w, client := ready(t)
	w.step(attachOf("other", 0, 1))
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	eff := w.step(Detach{attachOf("client", 0, 1).Key})
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	up := messages(eff)
	if len(up) != 1 || up[0].Subscribe[0].For != svc("other") || up[0].Unsubscribe[0].For != svc("client") {
		t.Fatalf("%+v", up)
	}
	w.step(Link{false})
	w.step(Detach{attachOf("other", 0, 1).Key})
	w.checkIndexes()
	w.pass(time.Minute)
	w.step(attachOf("other", 0, 2)) // attached again while the cluster is disconnected
	w.pass(2 * time.Minute)
	if got := w.backendsOf(vip(1)); got != "10.16.1.1*1 " {
		t.Fatal(got)
	}
	from, to := w.c.services.Ident(svc("other")), w.c.services.Ident(svc("web"))
	if !w.plane.Allowed[plane.Pair{From: from, To: to}] {
		t.Fatal(w.plane.Allowed)
	}
	w.checkIndexes()
	w.step(Detach{attachOf("other", 0, 2).Key})
	w.pass(3 * time.Minute)
	if len(w.plane.Services)+len(w.plane.Peers)+len(w.plane.Allowed)+len(w.c.services.IDs()) > 0 {
		t.Fatalf("%+v", w.plane)
	}
	w.checkIndexes()
}

func TestOneMessageMayReplaceAServiceAtAnAddress(t *testing.T) {
	w, client := ready(t)
	w.step(Miss{Local: client, Remote: vip(1)})
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	w.at(1, "192.168.1.11")
	w.agrees(1, plane.Paths{Route: true})
	again := route("api", 2, 1, 1) // on the same node, with the same addresses
	eff := w.answer(wire.NetDown{Records: wire.Records{RemovedRoutes: []api.ServiceID{svc("web")}, Routes: []api.Route{again}}})
	if p := w.plane.Peers[key(1)]; p.Path != api.PathRoute || len(orders[TunnelDrop](eff)) > 0 {
		t.Fatalf("the way to the node was lost: %+v", p)
	}
	if got := w.plane.Services[vip(1)].Ident; got != w.c.services.Ident(svc("api")) {
		t.Fatalf("the address is %d's", got)
	}
	w.checkIndexes()
	again.Rev = 3
	w.answer(wire.NetDown{Records: wire.Records{RemovedRoutes: []api.ServiceID{svc("api")}, Routes: []api.Route{again}}}) // removed and added again
	if w.backendsOf(vip(1)) == "none" {
		t.Fatal("what came was taken away with what went")
	}
	w.checkIndexes()
}

// A workload receives flows after it listens, separately for each attempt. Its own flows start at once.
func TestFlowsBeginWhenTheWorkloadListens(t *testing.T) {
	w, client := ready(t)
	web := attachOf("web", 5, 3)
	web.Addresses = route("web", 1, 1).Addresses
	w.step(web)
	w.answer(wire.NetDown{Records: wire.Records{Routes: []api.Route{route("web", 1, 1, 1)}}})
	w.step(Miss{Local: client, Remote: vip(1)})
	here, _ := w.c.View().Attached(web.Key)
	both := here.Address.String() + "*1 10.16.1.1*1 "
	state := func(want string, isReady bool) {
		t.Helper()
		w.checkIndexes()
		if a, _ := w.c.View().Attached(web.Key); w.backendsOf(vip(1)) != want || a.Ready != isReady || len(w.c.View().Unready()) != map[bool]int{true: 1, false: 2}[isReady] {
			t.Fatalf("flows go to %s, want %s; attached %+v, not ready %+v", w.backendsOf(vip(1)), want, a, w.c.View().Unready())
		}
	}
	state("10.16.1.1*1 ", false)
	if _, ok := w.plane.Endpoints[here.Address]; !ok {
		t.Fatal("it cannot send")
	}
	w.step(Ready{web.Key, "/proc/9/ns/net"}) // of an earlier attempt
	state("10.16.1.1*1 ", false)
	w.step(listens(web))
	state(both, true)
	w.step(web) // repeated
	state(both, true)
	w.restart()
	state(both, true)
	w.step(Drain{web.Key})
	state("10.16.1.1*1 ", true)
	again := web
	again.NetNS = "/proc/2/ns/net"
	w.step(again)
	state("10.16.1.1*1 ", false)
	w.step(listens(web))
	state("10.16.1.1*1 ", false)
	w.step(listens(again))
	state(both, true)
	w.step(Detach{web.Key})
	if eff := w.step(listens(again)); eff.Err != nil || len(eff.Save)+len(eff.Send) > 0 {
		t.Fatalf("what is gone listens: %+v", eff)
	}
}
