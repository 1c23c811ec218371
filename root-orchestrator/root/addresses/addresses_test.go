package addresses

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

const (
	web  = api.ServiceID("acme/shop.prod.web.prod")
	db   = api.ServiceID("acme/shop.prod.db.prod")
	evil = api.ServiceID("rival/x.y.z.w")
)

func book(t testing.TB, prefix string) *Book {
	b, err := New(netip.MustParsePrefix(prefix))
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
	b.Rest(db, []netip.Addr{netip.MustParseAddr("10.30.0.9")}, epoch.Add(Rest))
	for _, c := range []struct {
		who  api.ServiceID
		want *api.Addresses
		kind error
		says string
	}{
		{db, at("10.30.0.7"), api.ErrConflict, "service shop.prod.web.prod has it"},
		{evil, at("10.30.0.7"), api.ErrConflict, "a service of another tenant has it"},
		{web, at("10.30.0.9"), api.ErrConflict, "service shop.prod.db.prod had it"},
		{db, at("10.31.0.1"), api.ErrInvalid, "not one of 10.30.0.0/24"},
		{db, at("10.30.0.0"), api.ErrInvalid, "not one of"},
		{db, &api.Addresses{RoundRobin: "10.30.0.8", Closest: "10.30.0.8"}, api.ErrConflict, "asked for twice"},
		{db, &api.Addresses{Instances: []api.AddressRange{{From: 0, To: 3, Start: "10.30.0.5"}}}, api.ErrConflict, "10.30.0.7"},
	} {
		free := b.Free(epoch)
		_, err := b.Assign(epoch, c.who, c.want, api.ServiceAddresses{})
		if !errors.Is(err, c.kind) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s wants %+v: %v", c.who, c.want, err)
		}
		if b.Free(epoch) != free {
			t.Errorf("what was refused took %d addresses", free-b.Free(epoch))
		}
	}
	if p, err := b.Assign(epoch, db, at("10.30.0.9"), api.ServiceAddresses{}); err != nil || len(p.Woken()) != 1 {
		t.Errorf("whose it was may not have it again: %v", err)
	}
}

func TestAServiceKeepsWhatItHasAndGetsItsOwnAgain(t *testing.T) {
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

func TestAnExhaustedRangeSaysSo(t *testing.T) {
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

// TestNoAddressIsEverTwoServices assigns, updates, deletes, undoes and restarts at
// random, and keeps a plain map of who has what.
func TestNoAddressIsEverTwoServices(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		prefix := netip.MustParsePrefix("10.30.0.0/27")
		b, _ := New(prefix)
		now := epoch
		have := map[api.ServiceID]api.ServiceAddresses{}
		rests := map[netip.Addr]Resting{}
		text := func(label string) string {
			return rapid.SampledFrom([]string{"", "auto", "auto", "10.30.0.3", "10.30.0.4", "10.30.0.9"}).Draw(t, label)
		}
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			id := api.ServiceID(fmt.Sprintf("acme/a.b.c%d.d", rapid.IntRange(0, 7).Draw(t, "service")))
			switch rapid.IntRange(0, 5).Draw(t, "do") {
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
				for _, a := range p.Woken() {
					delete(rests, a)
				}
				have[id] = p.Addresses
				for _, a := range b.Rest(id, p.Freed, now.Add(Rest)) {
					rests[a] = Resting{id, now.Add(Rest)}
				}
			case 3:
				for _, a := range b.Rest(id, Addresses(have[id]), now.Add(Rest)) {
					rests[a] = Resting{id, now.Add(Rest)}
				}
				delete(have, id)
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 40).Draw(t, "minutes")) * time.Minute)
				for _, a := range b.Sweep(now) {
					delete(rests, a)
				}
			case 5:
				b, _ = New(prefix)
				for id, a := range have {
					if got := b.Mark(id, a); fmt.Sprint(got) != fmt.Sprint(a) {
						t.Fatalf("%s is restored with %v, had %v", id, got, a)
					}
				}
				for a, r := range rests {
					b.Rest(r.Service, []netip.Addr{a}, r.Until)
				}
			}
			taken := map[netip.Addr]api.ServiceID{}
			for id, as := range have {
				for _, a := range Addresses(as) {
					if other, twice := taken[a]; twice || b.Owner(a) != id {
						t.Fatalf("%s is %s's, %s's and the book's %s's", a, id, other, b.Owner(a))
					}
					taken[a] = id
				}
			}
			for a, r := range rests {
				if r.Until.After(now) && taken[a] != "" && taken[a] != r.Service {
					t.Fatalf("%s rests for %s and is %s's", a, r.Service, taken[a])
				}
			}
			if free := b.Free(now); free != 30-len(taken)-len(rests) {
				t.Fatalf("%d free, %d taken, %d rest", free, len(taken), len(rests))
			}
		}
	})
}
