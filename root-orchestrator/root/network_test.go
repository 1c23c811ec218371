package root

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/eventlog"
	"github.com/treeline-edge/treeline/internal/store"
	"github.com/treeline-edge/treeline/internal/wire"
)

// net makes a cluster report about the network, and returns the messages to it.
func (w *world) net(id api.ClusterID, n wire.ClusterNet) (told []wire.RootNet) {
	w.t.Helper()
	return w.netTo(id, id, n)
}

// netTo is net, but returns the messages to another cluster.
func (w *world) netTo(other, id api.ClusterID, n wire.ClusterNet) (told []wire.RootNet) {
	w.t.Helper()
	r := w.twins[id].report()
	r.Net = &n
	for _, e := range w.must(r).Send {
		if m, ok := e.Msg.(wire.RootNet); ok && e.To == other.Addr() {
			told = append(told, m)
		}
	}
	return told
}

// spread returns a world with one instance of web in cluster a and another in b.
func spread(t *testing.T, change ...func(*api.Microservice)) *world {
	t.Helper()
	w := newWorld(t, "a", "b")
	w.twins["a"].room, w.twins["b"].room = 1, 1
	w.apply(2, change...)
	w.settle()
	w.settle()
	if w.on("a") != 1 || w.on("b") != 1 {
		t.Fatalf("%d on a, %d on b", w.on("a"), w.on("b"))
	}
	return w
}

// inB returns the instance in cluster b of a spread world.
func (w *world) inB() api.InstanceID {
	if got, _ := w.c.Instance(web.Instance(0)); got.Cluster == "b" {
		return got.ID
	}
	return web.Instance(1)
}

func (w *world) shares(id api.ClusterID) []netip.Prefix {
	cl, _ := w.c.Cluster(id)
	return cl.Shares
}

func TestRangesAreLaidOutOnce(t *testing.T) {
	w := newWorld(t)
	var docs []store.Doc
	for _, d := range w.disk {
		docs = append(docs, d)
	}
	other := wire.DefaultNetRanges()
	other.Services = netip.MustParsePrefix("10.31.0.0/16")
	if err := New(Config{Ranges: other}).Restore(docs); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "10.30.0.0/16") {
		t.Errorf("other ranges: %v", err)
	}
	if err := New(Config{Ranges: wire.DefaultNetRanges()}).Restore(docs); err != nil {
		t.Errorf("the same: %v", err)
	}
	for name, spoil := range map[string]func(*wire.NetRanges){
		"overlap": func(r *wire.NetRanges) { r.Services = netip.MustParsePrefix("10.16.4.0/24") },
		"host":    func(r *wire.NetRanges) { r.Instances = netip.MustParsePrefix("10.16.0.1/13") },
		"bits":    func(r *wire.NetRanges) { r.Subnet = 19 },
		"v6":      func(r *wire.NetRanges) { r.Services6 = r.Instances6 },
		"v6 size": func(r *wire.NetRanges) { r.Services6 = netip.MustParsePrefix("fd00::/48") },
	} {
		r := wire.DefaultNetRanges()
		spoil(&r)
		if err := (Config{Ranges: r}).Validate(); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("ranges with %s: %v, want ErrInvalid", name, err)
		}
	}
}

func addressed(a *api.Addresses) func(*api.Microservice) {
	return func(m *api.Microservice) { m.Addresses = a }
}

func TestAddressesTravelWithAssignmentsAndOutliveTheRoot(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(3, addressed(&api.Addresses{Closest: "auto", Instances: []api.AddressRange{{From: 0, To: 1, Start: "10.30.9.1"}}}))
	w.settle()
	s, _ := w.c.Service(web)
	for n := range 3 {
		got := w.twins["a"].want[web.Instance(n)].Addresses
		if got.RoundRobin != s.Addresses.RoundRobin || got.Closest != s.Addresses.Closest || !got.Closest.IsValid() ||
			got.Instances[n] != s.Addresses.Instances[n] || got.Instances[n].IsValid() != (n < 2) || len(got.Instances) > 1 {
			t.Errorf("instance %d has %+v of %+v", n, got, s.Addresses)
		}
	}
	if s.Addresses.Instances[1] != netip.MustParseAddr("10.30.9.2") {
		t.Errorf("the addresses are %+v, want 10.30.9.2 for instance 1", s.Addresses)
	}
	w.restart()
	if again, _ := w.c.Service(web); fmt.Sprint(again.Addresses) != fmt.Sprint(s.Addresses) {
		t.Errorf("restarted it has %+v, had %+v", again.Addresses, s.Addresses)
	}
	w.must(DeleteApp{App: shop})
	w.pass(10 * time.Second)
	taken := application(1, addressed(&api.Addresses{RoundRobin: s.Addresses.RoundRobin.String()}))
	taken.Name = "other"
	w.restart()
	if err := w.do(Apply{Tenant: "rival", Spec: taken}).Err; !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "rests until") {
		t.Errorf("an address at rest: %v", err)
	}
	w.apply(1)
	if again, _ := w.c.Service(web); again.Addresses.RoundRobin != s.Addresses.RoundRobin {
		t.Errorf("the service comes back on %s, was on %s", again.Addresses.RoundRobin, s.Addresses.RoundRobin)
	}
	w.must(DeleteApp{App: shop})
	w.pass(10 * time.Second)
	w.now = w.now.Add(31 * time.Minute)
	w.must(Apply{Tenant: "acme", Spec: taken})
}

func TestATenantGetsItsShareOfTheAddresses(t *testing.T) {
	w := newWorld(t, "a")
	w.cfg.TenantPercent = 1
	w.restart()
	w.settle()
	many := func(tenant api.Tenant, name string, n int) error {
		app := application(1, addressed(&api.Addresses{Instances: []api.AddressRange{{From: 0, To: n - 2, Start: "auto"}}}))
		app.Name = name
		return w.do(Apply{Tenant: tenant, Spec: app}).Err
	}
	if err := many("acme", "most", 655); err != nil {
		t.Fatal(err)
	}
	saved := len(w.disk)
	for _, tenant := range []api.Tenant{"acme", "acme/lab"} {
		if err := many(tenant, "more", 1); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "tenant acme has 655 of the 65534 addresses") {
			t.Errorf("%s gets another: %v", tenant, err)
		}
	}
	if len(w.disk) != saved {
		t.Error("it saved something")
	}
	if err := many("rival", "more", 1); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	w.must(DeleteApp{App: "acme/most.prod"})
	w.pass(10 * time.Second)
	w.restart() // resting addresses keep their former owner
	if err := many("acme", "more", 1); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "655 of them at rest") {
		t.Errorf("while its own rest: %v", err)
	}
	if err := many("acme", "most", 655); err != nil {
		t.Errorf("its own again: %v", err)
	}
	w.must(DeleteApp{App: "acme/most.prod"})
	w.pass(10 * time.Second)
	w.now = w.now.Add(31 * time.Minute)
	if err := many("acme", "more", 1); err != nil {
		t.Error(err)
	}
}

func TestARefusedApplyChangesNothing(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1, addressed(&api.Addresses{RoundRobin: "10.30.1.1"}))
	w.settle()
	before := maps.Clone(w.disk)
	app := application(2, addressed(&api.Addresses{RoundRobin: "10.30.1.1"}))
	app.Name = "second"
	free := w.c.addresses.Free(w.now)
	eff := w.do(Apply{Tenant: "acme", Spec: app})
	if !errors.Is(eff.Err, api.ErrConflict) || !strings.Contains(eff.Err.Error(), "shop.prod.web.prod has it") {
		t.Fatalf("request of an address in use: %v, want a conflict that names the service", eff.Err)
	}
	if len(eff.Save) > 0 || len(w.disk) != len(before) || w.c.addresses.Free(w.now) != free || len(w.c.Apps("")) != 1 {
		t.Errorf("it saved %v", eff.Save)
	}
	if err := w.do(Apply{Tenant: "acme", Spec: application(1, addressed(&api.Addresses{RoundRobin: "10.40.0.1"}))}).Err; !errors.Is(err, api.ErrInvalid) {
		t.Errorf("outside the range: %v", err)
	}
	if s, _ := w.c.Service(web); s.Addresses.RoundRobin != netip.MustParseAddr("10.30.1.1") {
		t.Errorf("it lost its address: %+v", s.Addresses)
	}
}

// The IPv6 address of a service is derived from its IPv4 address, so an SLA can only name that one.
func TestIPv6AddressOfAnSLAMustMatchItsIPv4Address(t *testing.T) {
	w := newWorld(t, "a")
	w.settle()
	free, ranges := w.c.addresses.Free(w.now), w.c.net.Ranges()
	for _, wrong := range []string{"fdff:2000::55:55", "fdff:2000::a1e:101", ranges.To6(netip.MustParseAddr("10.30.1.2")).String()} {
		err := w.do(Apply{Tenant: "acme", Spec: application(1, addressed(&api.Addresses{RoundRobin: "10.30.1.1", RoundRobin6: wrong}))}).Err
		if !errors.Is(err, api.ErrInvalid) || !strings.Contains(err.Error(), "fd74:6c6e:2::a1e:101") {
			t.Errorf("IPv6 address %s: %v, want an error that names the right address", wrong, err)
		}
		if w.c.addresses.Free(w.now) != free || len(w.c.Apps("")) != 0 {
			t.Fatalf("%s: the refused apply has left something", wrong)
		}
	}
	w.apply(1, addressed(&api.Addresses{RoundRobin: "10.30.1.1", RoundRobin6: "fd74:6c6e:2::a1e:101"}))
	if s, _ := w.c.Service(web); ranges.To6(s.Addresses.RoundRobin).String() != "fd74:6c6e:2::a1e:101" {
		t.Errorf("it got %+v", s.Addresses)
	}
}

// TestARestoredStoreAssignsNoAddressInUse restores the root from a copy from before a share and
// an address were assigned.
func TestARestoredStoreAssignsNoAddressInUse(t *testing.T) {
	w := newWorld(t, "a", "b")
	old := maps.Clone(w.disk)
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	w.apply(1)
	mine := w.shares("a")
	s, _ := w.c.Service(web)
	w.disk = old
	w.restart()
	told := w.net("a", wire.ClusterNet{
		Whole: true, Subnets: 1, Shares: mine,
		InUse: []wire.ServiceAddress{{Address: s.Addresses.RoundRobin, Service: web}},
	})
	if !slices.Equal(w.shares("a"), mine) || len(told) != 1 || !slices.Equal(told[0].Shares, mine) {
		t.Errorf("it has %v, had %v", w.shares("a"), mine)
	}
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 1})
	if slices.Equal(w.shares("b"), mine) {
		t.Error("a share is given twice")
	}
	app := application(1, addressed(&api.Addresses{RoundRobin: s.Addresses.RoundRobin.String()}))
	app.Name = "thief"
	if err := w.do(Apply{Tenant: "acme", Spec: app}).Err; !errors.Is(err, api.ErrConflict) {
		t.Errorf("an address in use is given away: %v", err)
	}
	// If it was assigned to another cluster meanwhile, the recorded owner keeps it.
	w.now = w.now.Add(2 * time.Second)
	told = w.net("b", wire.ClusterNet{Rev: 1 << 63, Subnets: 1, Shares: append(slices.Clone(mine), w.shares("b")...)})
	if len(told) == 0 || slices.Contains(told[0].Shares, mine[0]) {
		t.Errorf("b is told %+v", told)
	}
}

// TestClaimsEndWithTheirCluster removes a cluster that claimed an address of another service: a
// cluster that joins under the name later is not held to the claims, and none stay at the root.
func TestClaimsEndWithTheirCluster(t *testing.T) {
	w := newWorld(t, "a")
	w.apply(1)
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	s, _ := w.c.Service(web)
	disputes := func() (n int) {
		for _, e := range w.c.Events(eventlog.Filter{}) {
			if strings.Contains(e.Detail, "for old.x.x.x, although") {
				n++
			}
		}
		return n
	}
	claim := wire.ClusterNet{Whole: true, Subnets: 1, InUse: []wire.ServiceAddress{{Address: s.Addresses.RoundRobin, Service: "acme/old.x.x.x"}}}
	w.net("a", claim)
	w.net("a", claim)
	if n := disputes(); n != 1 {
		t.Fatalf("%d events about the disputed address, want 1", n)
	}
	w.must(RemoveCluster{"a"})
	delete(w.twins, "a")
	w.join("a", 10)
	w.net("a", claim)
	if n := disputes(); n != 2 {
		t.Errorf("%d events after another cluster joined under the name, want 2", n)
	}
}

// TestAClusterPublishesOnlyItsOwnRecords has a cluster publish records that are not its own.
func TestAClusterPublishesOnlyItsOwnRecords(t *testing.T) {
	w := spread(t, func(m *api.Microservice) { m.Port = "6080:80" })
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 1})
	own, foreign := w.shares("b")[0].Addr().Next(), w.shares("a")[0].Addr().Next()
	peer := func(k byte, at netip.Addr) api.Peer {
		return api.Peer{Key: api.PeerKey{k}, Node: "secret", Cluster: "a", Subnets: []netip.Prefix{netip.PrefixFrom(at, 26).Masked()}, Rev: 1}
	}
	want := wire.Subscription{Service: web, For: web}
	w.net("a", wire.ClusterNet{Subscribe: []wire.Subscription{want}, Subnets: 1, Shares: w.shares("a"), Subscribed: want.Digest()})
	in := w.inB()
	route := api.Route{
		Service: web, Rev: 1, Access: api.Access{Callers: []string{"rival/x.y"}}, Addresses: api.ServiceAddresses{RoundRobin: foreign},
		Peers: []api.Peer{peer(1, own), peer(2, foreign)},
		Backends: []api.Backend{
			{Instance: in, Address: own, Peer: api.PeerKey{1}, State: api.BackendUp},
			{Instance: in, Address: foreign, Peer: api.PeerKey{1}, State: api.BackendUp},
			{Instance: in, Address: own.Next(), Peer: api.PeerKey{2}, State: api.BackendUp},
			{Instance: "acme/other.a.b.c#0", Address: own.Next(), Peer: api.PeerKey{1}, State: api.BackendUp},
		},
	}
	var got []api.Route
	for _, m := range w.netTo("a", "b", wire.ClusterNet{Records: wire.Records{Routes: []api.Route{route}}, Subnets: 1, Shares: w.shares("b")}) {
		got = append(got, m.Routes...)
	}
	s, _ := w.c.Service(web)
	if len(got) != 1 || len(got[0].Backends) != 1 || got[0].Backends[0].Address != own || len(got[0].Peers) != 1 ||
		got[0].Peers[0].Node != "" || got[0].Peers[0].Cluster != "b" || got[0].Access.Callers != nil || got[0].Addresses.RoundRobin != s.Addresses.RoundRobin ||
		!slices.Equal(got[0].Ports, []api.PortMap{{Host: 6080, Instance: 80, Protocol: "tcp"}}) {
		t.Errorf("a is told %+v", got)
	}
}

// TestARestartedRootRemovesNoRecordsOfUnheardClusters restarts the root while a cluster has a route to
// another one. It keeps the route until the other one has reported.
func TestARestartedRootRemovesNoRecordsOfUnheardClusters(t *testing.T) {
	w := spread(t)
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 1})
	own := w.shares("b")[0].Addr().Next()
	want := wire.Subscription{Service: web, For: web}
	route := api.Route{
		Service: web, Rev: 1,
		Peers:    []api.Peer{{Key: api.PeerKey{1}, Subnets: []netip.Prefix{netip.PrefixFrom(own, 26).Masked()}, Rev: 1}},
		Backends: []api.Backend{{Instance: w.inB(), Address: own, Peer: api.PeerKey{1}, State: api.BackendUp}},
	}
	records := wire.Records{Routes: []api.Route{route}}
	shares := map[api.ClusterID][]netip.Prefix{"a": w.shares("a"), "b": w.shares("b")}
	routes := func(from api.ClusterID, n wire.ClusterNet) (out []api.Route) {
		n.Subnets, n.Shares = 1, shares[from]
		for _, m := range w.netTo("a", from, n) {
			out = append(out, m.Routes...)
			if m.Whole && len(m.Routes) == 0 {
				t.Errorf("after %s spoke, a is told that there is nothing: %+v", from, m)
			}
		}
		return out
	}
	mine := wire.ClusterNet{Subscribe: []wire.Subscription{want}, Subscribed: want.Digest()}
	routes("a", mine)
	if got := routes("b", wire.ClusterNet{Records: records}); len(got) != 1 || len(got[0].Backends) != 1 {
		t.Fatalf("a is told %+v", got)
	}
	w.restart()
	mine.Whole = true
	if got := routes("a", mine); len(got) != 0 {
		t.Errorf("before b is back, a is told %+v", got)
	}
	if got := routes("b", wire.ClusterNet{}); len(got) != 0 { // the first report after the restart of the root
		t.Errorf("before b has said what it has, a is told %+v", got)
	}
	if got := routes("b", wire.ClusterNet{Whole: true, Records: records}); len(got) != 1 || len(got[0].Backends) != 1 {
		t.Errorf("with b's word, a is told %+v", got)
	}
}
