package addresses

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	web  = api.ServiceID("acme/shop.prod.web.prod")
	db   = api.ServiceID("acme/shop.prod.db.prod")
	evil = api.ServiceID("rival/x.y.z.w")
)

func book(t testing.TB, prefix string) *Registry {
	b, err := New(netip.MustParsePrefix(prefix), 0)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestFixedAddressesAreHonouredOrRefused(t *testing.T) {
	b := book(t, "10.30.0.0/24")
	at := func(s string) *api.Addresses { return &api.Addresses{RoundRobin: s} }
	p, err := b.Assign(epoch, web, at("10.30.0.7"), api.ServiceAddresses{})
	if err != nil || p.Addresses.RoundRobin != netip.MustParseAddr("10.30.0.7") {
		t.Fatal(p, err)
	}
	b.Rest(Resting{Service: db, Until: epoch.Add(Rest)}, []netip.Addr{netip.MustParseAddr("10.30.0.9")})
	for _, c := range []struct {
		who  api.ServiceID
		want *api.Addresses
		kind error
		says string
	}{
		{db, at("10.30.0.7"), api.ErrConflict, "service shop.prod.web.prod has it"},
		{evil, at("10.30.0.7"), api.ErrConflict, "a service of another tenant has it"},
		{evil, at("10.30.0.9"), api.ErrConflict, "a service of another tenant had it"},
		{db, at("10.31.0.1"), api.ErrInvalid, "not an address of 10.30.0.0/24"},
		{db, at("10.30.0.0"), api.ErrInvalid, "not an address of"},
		{db, &api.Addresses{RoundRobin: "10.30.0.8", Closest: "10.30.0.8"}, api.ErrConflict, "asked for twice"},
		{db, &api.Addresses{Instances: []api.AddressRange{{From: 0, To: 3, Start: "10.30.0.5"}}}, api.ErrConflict, "10.30.0.7"},
	} {
		free := b.Free(epoch)
		_, err := b.Assign(epoch, c.who, c.want, api.ServiceAddresses{})
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s requests %+v: got %v, want %v with %q", c.who, c.want, err, c.kind, c.says)
		}
		if b.Free(epoch) != free {
			t.Errorf("what was refused took %d addresses", free-b.Free(epoch))
		}
	}
	if p, err := b.Assign(epoch, db, at("10.30.0.9"), api.ServiceAddresses{}); err != nil || len(p.Reused()) != 1 {
		t.Errorf("whose it was may not have it again: %v, want no error, 1 elements", err)
	}
}

func TestAServiceKeepsItsAddressesAndGetsThemBack(t *testing.T) {
	b := book(t, "10.30.0.0/16")
	all := &api.Addresses{RoundRobin: "auto", Closest: "auto", Instances: []api.AddressRange{{From: 0, To: 9, Start: "auto"}}}
	p, err := b.Assign(epoch, web, all, api.ServiceAddresses{})
	if err != nil || len(p.Addresses.Instances) != 10 || !p.Addresses.Closest.IsValid() {
		t.Fatal(p, err)
	}
	less, err := b.Assign(epoch, web, &api.Addresses{Closest: "auto", Instances: []api.AddressRange{{From: 5, To: 6}}}, p.Addresses)
	if err != nil || less.Addresses.RoundRobin != p.Addresses.RoundRobin || less.Addresses.Closest != p.Addresses.Closest ||
		less.Addresses.Instances[5] != p.Addresses.Instances[5] || len(less.Freed) != 8 {
		t.Fatal(less, err)
	}
	fresh, err := book(t, "10.30.0.0/16").Assign(epoch, web, all, api.ServiceAddresses{})
	if err != nil || fmt.Sprint(fresh.Addresses) != fmt.Sprint(p.Addresses) {
		t.Errorf("a root that forgot gives %v, it had %v", fresh.Addresses, p.Addresses)
	}
}

func TestAnExhaustedRangeIsReported(t *testing.T) {
	b := book(t, "10.30.0.0/29")
	for n := range 6 {
		if _, err := b.Assign(epoch, api.ServiceID(fmt.Sprintf("acme/a.b.c%d.d", n)), nil, api.ServiceAddresses{}); err != nil {
			t.Fatal(n, err)
		}
	}
	if _, err := b.Assign(epoch, web, nil, api.ServiceAddresses{}); !errors.Is(err, api.ErrUnavailable) || !strings.Contains(err.Error(), "exhausted") {
		t.Fatal(err)
	}
}

func TestNoTenantTakesAllAddresses(t *testing.T) {
	b, err := New(netip.MustParsePrefix("10.30.0.0/28"), 4)
	if err != nil {
		t.Fatal(err)
	}
	give := func(id api.ServiceID, want *api.Addresses) error {
		_, err := b.Assign(epoch, id, want, api.ServiceAddresses{})
		return err
	}
	if err := give(web, &api.Addresses{Instances: []api.AddressRange{{From: 0, To: 1, Start: "10.30.0.5"}}}); err != nil {
		t.Fatal(err)
	}
	b.Rest(Resting{Service: web, Until: epoch.Add(Rest)}, []netip.Addr{netip.MustParseAddr("10.30.0.5")})
	if err := give("acme/lab/a.b.c.d", nil); err != nil { // a tenant below shares the limit
		t.Fatal(err)
	}
	fixed, free := &api.Addresses{RoundRobin: "10.30.0.9"}, b.Free(epoch)
	for _, want := range []*api.Addresses{nil, fixed, {Closest: "auto"}} {
		err := give(db, want)
		if !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "tenant acme has 4 of the 14 addresses of services, 1 of them at rest, and has reached its limit") ||
			!strings.Contains(err.Error(), "network.tenant_percent") || b.Free(epoch) != free {
			t.Errorf("%v", err)
		}
	}
	if err := give(evil, fixed); err != nil {
		t.Errorf("another tenant: %v", err)
	}
	b.Sweep(epoch.Add(Rest))
	if err := give(db, nil); err != nil {
		t.Errorf("one of its own has rested, but %v", err)
	}
}

// TestNoAddressIsEverTwoServices assigns, updates, deletes, undoes and restarts at random, and
// compares with a plain map of owners. The services of acme never exceed the tenant's limit;
// addresses claimed by clusters do not count.
func TestNoAddressIsEverTwoServices(t *testing.T) {
	const most = 20
	rapid.Check(t, func(t *rapid.T) {
		prefix := netip.MustParsePrefix("10.30.0.0/27")
		b, _ := New(prefix, most)
		now := epoch
		have := map[api.ServiceID]api.ServiceAddresses{}
		rests := map[netip.Addr]Resting{}
		text := func(label string) string {
			return rapid.SampledFrom([]string{"", "auto", "auto", "10.30.0.3", "10.30.0.4", "10.30.0.9"}).Draw(t, label)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := api.ServiceID(fmt.Sprintf("acme/%sa.b.c%d.d", rapid.SampledFrom([]string{"", "lab/"}).Draw(t, "tenant"), rapid.IntRange(0, 7).Draw(t, "service")))
			switch rapid.IntRange(0, 6).Draw(t, "do") {
			case 0, 1, 2:
				want := &api.Addresses{RoundRobin: text("rr"), Closest: text("closest")}
				if n := rapid.IntRange(0, 3).Draw(t, "instances"); n > 0 {
					want.Instances = []api.AddressRange{{From: 0, To: n - 1, Start: text("start")}}
				}
				p, err := b.Assign(now, id, want, have[id])
				if err != nil {
					break
				}
				if rapid.IntRange(0, 3).Draw(t, "undo") == 0 {
					b.Undo(p)
					break
				}
				for _, a := range p.Reused() {
					delete(rests, a)
				}
				have[id] = p.Addresses
				r := Resting{Service: id, Until: now.Add(Rest)}
				for _, a := range b.Rest(r, p.Freed) {
					rests[a] = r
				}
			case 3:
				r := Resting{Service: id, Until: now.Add(Rest)}
				for _, a := range b.Rest(r, have[id].All()) {
					rests[a] = r
				}
				delete(have, id)
			case 6:
				r := Resting{Service: id, Until: now.Add(Rest), Claimed: true}
				a := prefix.Addr().As4()
				a[3] += byte(rapid.IntRange(1, 30).Draw(t, "quoted"))
				if b.Owner(netip.AddrFrom4(a)) == "" {
					for _, a := range b.Rest(r, []netip.Addr{netip.AddrFrom4(a)}) {
						rests[a] = r
					}
				}
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute)
				for _, a := range b.Sweep(now) {
					delete(rests, a)
				}
			case 5:
				b, _ = New(prefix, most)
				for id, a := range have {
					if got := b.Restore(id, a); fmt.Sprint(got) != fmt.Sprint(a) {
						t.Fatalf("%s is restored with %v, had %v", id, got, a)
					}
				}
				for a, r := range rests {
					b.Rest(r, []netip.Addr{a})
				}
			}
			taken := map[netip.Addr]api.ServiceID{}
			for id, as := range have {
				for _, a := range as.All() {
					if other, twice := taken[a]; twice || b.Owner(a) != id {
						t.Fatalf("%s is %s's, %s's and the book's %s's", a, id, other, b.Owner(a))
					}
					taken[a] = id
				}
			}
			for a, r := range rests {
				if r.Until.After(now) && taken[a] != "" && taken[a].Tenant() != r.Service.Tenant() {
					t.Fatalf("%s rests for %s and is %s's", a, r.Service, taken[a])
				}
			}
			counted := len(taken)
			for _, r := range rests {
				if !r.Claimed {
					counted++
				}
			}
			if b.perTenant["acme"] != counted || counted > most {
				t.Fatalf("acme has %d of %d, counted %d", counted, most, b.perTenant["acme"])
			}
			if free := b.Free(now); free != 30-len(taken)-len(rests) {
				t.Fatalf("%d free, %d taken, %d rest", free, len(taken), len(rests))
			}
		}
	})
}

// Another service of the tenant may request a resting address of the tenant at once. It is not
// assigned automatically, and other tenants have to wait.
func TestAChosenAddressIsFreeForItsTenantAtOnce(t *testing.T) {
	b, err := New(netip.MustParsePrefix("10.30.0.0/28"), 0)
	if err != nil {
		t.Fatal(err)
	}
	at := netip.MustParseAddr("10.30.0.9")
	chosen := &api.Addresses{RoundRobin: at.String()}
	have, err := give2(b, web, chosen)
	if err != nil {
		t.Fatal(err)
	}
	b.Rest(Resting{Service: web, Until: epoch.Add(Rest)}, have.All())
	if _, err := give2(b, evil, chosen); !errors.Is(err, api.ErrConflict) || !strings.Contains(err.Error(), "a service of another tenant had it, and it rests until") {
		t.Errorf("another tenant: %v, want ErrConflict, a text with 'a service of another tenant had it, and it rests until'", err)
	}
	for i := range 13 { // all other addresses
		id := api.ServiceID(fmt.Sprintf("acme/shop.prod.s%d.prod", i))
		if got, err := give2(b, id, nil); err != nil || slices.Contains(got.All(), at) {
			t.Fatalf("%s got %v, %v", id, got, err)
		}
	}
	got, err := give2(b, db, chosen)
	if err != nil || !slices.Contains(got.All(), at) {
		t.Fatalf("its own tenant's other service: %v, %v", got, err)
	}
	if o := b.Owner(at); o != db {
		t.Errorf("it is %s's", o)
	}
}

func give2(b *Registry, id api.ServiceID, want *api.Addresses) (api.ServiceAddresses, error) {
	p, err := b.Assign(epoch, id, want, api.ServiceAddresses{})
	return p.Addresses, err
}

// A cluster repeats its addresses in each report. Each claim counts once.
func TestClaimsAreCountedOnceAndBounded(t *testing.T) {
	b, err := New(netip.MustParsePrefix("10.30.0.0/16"), 0)
	if err != nil {
		t.Fatal(err)
	}
	until := time.Date(2026, 1, 1, 0, 30, 0, 0, time.UTC)
	var used []wire.ServiceAddress
	for i := range 100 {
		used = append(used, wire.ServiceAddress{Address: netip.AddrFrom4([4]byte{10, 30, 9, byte(i + 1)}), Service: api.ServiceID(fmt.Sprintf("acme/old.prod.s%d.prod", i))})
	}
	for i := range 11 {
		resting, disputed := b.Claim("a", used, until)
		if want := map[bool]int{true: 100}[i == 0]; len(resting) != want || len(disputed) != 0 {
			t.Fatalf("claim %d: %d addresses rest and %d are disputed, want %d and 0", i, len(resting), len(disputed), want)
		}
	}
	var many []wire.ServiceAddress
	for i := range 2 * maxClaims {
		many = append(many, wire.ServiceAddress{Address: netip.AddrFrom4([4]byte{10, 30, byte(100 + i/250), byte(1 + i%250)}), Service: "acme/x.x.x.x"})
	}
	if resting, _ := b.Claim("a", many, until); len(resting) != maxClaims-100 {
		t.Errorf("%d more addresses rest because of one cluster, want %d", len(resting), maxClaims-100)
	}
	if resting, _ := b.Claim("b", many[maxClaims:maxClaims+10], until); len(resting) != 10 {
		t.Errorf("%d addresses rest because of another cluster, want 10", len(resting))
	}
	mine, err := b.Assign(until, "acme/x.x.web.x", &api.Addresses{RoundRobin: "10.30.1.1"}, api.ServiceAddresses{})
	if err != nil {
		t.Fatal(err)
	}
	claim := []wire.ServiceAddress{{Address: mine.Addresses.RoundRobin, Service: "acme/x.x.old.x"}}
	for i := range 2 {
		if _, disputed := b.Claim("b", claim, until); len(disputed) != 1-i {
			t.Errorf("claim %d of an address of another service is disputed %d times, want %d", i, len(disputed), 1-i)
		}
	}
	b.Sweep(until)
	if resting, _ := b.Claim("a", many, until); len(resting) != maxClaims {
		t.Errorf("%d addresses rest once the earlier ones have rested, want %d", len(resting), maxClaims)
	}
}

// A tenant that takes an address back and releases it again must not delay other addresses.
func TestAnAddressThatRestsAgainDelaysNoOther(t *testing.T) {
	b := book(t, "10.30.0.0/24")
	fixed := func(id api.ServiceID, addr string) (Plan, []netip.Addr) {
		t.Helper()
		p, err := b.Assign(epoch, id, &api.Addresses{RoundRobin: addr}, api.ServiceAddresses{})
		if err != nil {
			t.Fatal(err)
		}
		return p, p.Addresses.All()
	}
	rest := func(id api.ServiceID, addrs []netip.Addr, at time.Duration) {
		b.Rest(Resting{Service: id, Until: epoch.Add(at + Rest)}, addrs)
	}
	_, first := fixed(evil, "10.30.0.7")
	_, second := fixed(web, "10.30.0.8")
	rest(evil, first, 0)
	rest(web, second, time.Minute)
	for range 3 { // plans leave nothing behind
		p, _ := fixed(evil, "10.30.0.7")
		b.Undo(p)
	}
	fixed(evil, "10.30.0.7")
	rest(evil, first, 29*time.Minute)
	if over := b.Sweep(epoch.Add(2*time.Minute + Rest)); !slices.Equal(over, second) {
		t.Errorf("free after 32 minutes: %v, want %v", over, second)
	}
	if over := b.Sweep(epoch.Add(29*time.Minute + Rest)); !slices.Equal(over, first) {
		t.Errorf("free after 59 minutes: %v, want %v", over, first)
	}
}
