package interest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// inParts splits a complete set of routes into parts of each routes.
func inParts(all []api.Route, each int) (parts []wire.Records, spans []wire.Span) {
	all = slices.SortedFunc(slices.Values(all), func(a, b api.Route) int { return RouteOf(a.Service).Compare(RouteOf(b.Service)) })
	of := wire.Span{}
	for part := range slices.Chunk(all, each) {
		of = wire.Span{After: of.To, To: wire.RouteName(part[len(part)-1].Service)}
		parts, spans = append(parts, wire.Records{Routes: part}), append(spans, of)
	}
	spans[len(spans)-1].To = ""
	return parts, spans
}

func manyRoutes(n int) (all []api.Route) {
	for i := range n {
		all = append(all, api.Route{Service: api.ServiceID(fmt.Sprintf("acme/shop.production.service-number-%d.production", i)), Rev: 1})
	}
	return all
}

// TestAReplicaHasTheLastPartsInAnyOrder applies parts in any order, duplicated, with other spans and with
// changes between them, and compares the replica with a map.
func TestAReplicaHasTheLastPartsInAnyOrder(t *testing.T) {
	name := func(n int) api.ServiceID { return api.ServiceID(fmt.Sprintf("acme/a.b.c%02d.d", n)) }
	rapid.Check(t, func(t *rapid.T) {
		var h Replica
		held, refused := map[api.ServiceID]bool{}, map[wire.Subscription]bool{}
		some := rapid.SliceOfDistinct(rapid.IntRange(0, 30), rapid.ID[int])
		for range rapid.IntRange(1, 30).Draw(t, "messages") {
			var r wire.Records
			for _, n := range some.Draw(t, "routes") {
				r.Routes = append(r.Routes, api.Route{Service: name(n), Rev: 1})
			}
			for _, n := range some.Draw(t, "refused") {
				r.Refused = append(r.Refused, wire.Refusal{Subscription: wire.Subscription{Service: name(n)}})
			}
			if rapid.Bool().Draw(t, "a change") {
				for _, n := range some.Draw(t, "gone") {
					r.RemovedRoutes = append(r.RemovedRoutes, name(n))
					delete(held, name(n))
				}
				h.Take(r)
			} else {
				edge := func(label string) string {
					return rapid.SampledFrom([]string{
						"", "peer x", "q", wire.RouteName(name(7)), wire.RouteName(name(15)), wire.RouteName(name(22)),
						wire.RefusalName(wire.Subscription{Service: name(15)}),
					}).Draw(t, label)
				}
				of := wire.Span{After: edge("after"), To: edge("to")}
				r.Routes = slices.DeleteFunc(r.Routes, func(v api.Route) bool { return !of.Has(wire.RouteName(v.Service)) })
				r.Refused = slices.DeleteFunc(r.Refused, func(v wire.Refusal) bool { return !of.Has(wire.RefusalName(v.Subscription)) })
				maps.DeleteFunc(held, func(id api.ServiceID, _ bool) bool { return of.Has(wire.RouteName(id)) })
				maps.DeleteFunc(refused, func(w wire.Subscription, _ bool) bool { return of.Has(wire.RefusalName(w)) })
				h.TakeAll(r, of)
			}
			for _, v := range r.Routes {
				held[v.Service] = true
			}
			for _, v := range r.Refused {
				refused[v.Subscription] = true
			}
			if !slices.Equal(slices.Sorted(maps.Keys(h.Routes)), slices.Sorted(maps.Keys(held))) || len(h.Refused) != len(refused) {
				t.Fatalf("it holds %v and %v, should %v and %v", slices.Sorted(maps.Keys(h.Routes)), h.Refused, slices.Sorted(maps.Keys(held)), refused)
			}
			for w := range refused {
				if _, ok := h.Refused[w]; !ok {
					t.Fatalf("it does not hold that %v is refused", w)
				}
			}
		}
	})
}

// TestLookupsEqualALinearSearch adds, changes and removes nodes and sources, in pairs with the same
// subnets and addresses, and compares the look-ups with a linear search.
func TestLookupsEqualALinearSearch(t *testing.T) {
	subs := []netip.Prefix{
		netip.MustParsePrefix("10.16.0.0/26"), netip.MustParsePrefix("10.16.0.64/26"), netip.MustParsePrefix("10.16.0.77/26"), // not masked
		netip.MustParsePrefix("10.16.0.0/25"), netip.MustParsePrefix("10.16.0.0/20"), netip.MustParsePrefix("fd00::/64"), {},
	}
	addrs := []netip.Addr{
		netip.MustParseAddr("10.16.0.1"), netip.MustParseAddr("10.16.0.65"), netip.MustParseAddr("10.16.1.1"), netip.MustParseAddr("10.17.0.1"),
		netip.MustParseAddr("fd00::1"), netip.MustParseAddr("fd01::1"),
		{},
	}
	services := []api.ServiceID{"", "acme/a.b.c.d", "acme/a.b.e.d"}
	rapid.Check(t, func(t *rapid.T) {
		var h Replica
		for range rapid.IntRange(1, 30).Draw(t, "messages") {
			var r wire.Records
			for range rapid.IntRange(0, 3).Draw(t, "records") {
				k, a := api.PeerKey{rapid.ByteRange(1, 4).Draw(t, "node")}, rapid.SampledFrom(addrs).Draw(t, "address")
				switch rev := rapid.Uint64Range(1, 3).Draw(t, "revision"); rapid.IntRange(0, 3).Draw(t, "what") {
				case 0:
					r.RemovedPeers = append(r.RemovedPeers, k)
				case 1:
					r.RemovedSources = append(r.RemovedSources, a)
				case 2:
					r.Peers = append(r.Peers, api.Peer{Key: k, Rev: rev, Subnets: rapid.SliceOfN(rapid.SampledFrom(subs), 0, 3).Draw(t, "subnets")})
				default:
					r.Sources = append(r.Sources, wire.Source{Address: a, Rev: rev, Service: rapid.SampledFrom(services).Draw(t, "service")})
				}
			}
			if rapid.Bool().Draw(t, "all") {
				h.TakeAll(r, wire.Span{})
			} else {
				h.Take(r)
			}
			for _, a := range addrs {
				var best *api.Peer
				bits := -1
				for _, p := range h.Peers {
					for _, sub := range p.Subnets {
						if sub.Contains(a) && (sub.Bits() > bits || sub.Bits() == bits && (p.Rev > best.Rev || p.Rev == best.Rev && p.Key[0] > best.Key[0])) {
							best, bits = &p, sub.Bits()
						}
					}
				}
				if got := h.PeerAt(a); (got == nil) != (best == nil) || got != nil && got.Key != best.Key {
					t.Fatalf("at %s is %+v, should %+v", a, got, best)
				}
			}
			for _, id := range services {
				var of []netip.Addr
				for a, s := range h.Sources {
					if s.Service == id {
						of = append(of, a)
					}
				}
				if slices.SortFunc(of, netip.Addr.Compare); !slices.Equal(h.SourcesOf(id), of) {
					t.Fatalf("%q has %v, should %v", id, h.SourcesOf(id), of)
				}
			}
		}
		h.TakeAll(wire.Records{}, wire.Span{})
		if n := len(h.subnets.of) + len(h.subnets.lengths) + len(h.of); n > 0 {
			t.Fatalf("of nothing %d entries are left", n)
		}
	})
}

// BenchmarkFound looks up nodes by address among few and among many, and the sources of a service.
func BenchmarkFound(b *testing.B) {
	for _, many := range []int{100, 10_000} {
		var h Replica
		var r wire.Records
		for i := range many {
			a := netip.AddrFrom4([4]byte{10, 16 + byte(i>>10), byte(i >> 2), byte(i << 6)})
			r.Peers = append(r.Peers, api.Peer{Key: api.PeerKey{byte(i >> 8), byte(i)}, Rev: 1, Subnets: []netip.Prefix{netip.PrefixFrom(a, 26)}})
			r.Sources = append(r.Sources, wire.Source{Address: a, Rev: 1, Service: api.ServiceID(fmt.Sprintf("acme/shop.production.service-number-%d.production", i))})
		}
		h.Take(r)
		b.Run(fmt.Sprint(many), func(b *testing.B) {
			for b.Loop() {
				if s := r.Sources[many/2]; h.PeerAt(s.Address) == nil || len(h.SourcesOf(s.Service)) != 1 {
					b.Fatal("it is not found")
				}
			}
		})
	}
}

// TestCostOfPartsIsProportionalToTheirSize sends two large replicas their complete set again, in few and in many
// parts. Both must cost the same.
func TestCostOfPartsIsProportionalToTheirSize(t *testing.T) {
	const many = 10_000
	all := manyRoutes(many)
	var has Replica
	has.Take(wire.Records{Routes: all})
	for what, held := range map[string]func() *Replica{
		"of what it has": func() *Replica { return &has }, "from nothing": func() *Replica { return new(Replica) },
	} {
		cost := func(each int) float64 {
			parts, spans := inParts(all, each)
			return testing.AllocsPerRun(1, func() {
				h := held()
				for i, p := range parts {
					h.TakeAll(p, spans[i])
				}
				if len(h.Routes) != many || h.cursor.begun {
					t.Errorf("%s: it holds %d, and goes on: %v", what, len(h.Routes), h.cursor.begun)
				}
			}) / many
		}
		few := cost(many / 5)
		if much := cost(many / 200); much > 2*few+2 {
			t.Errorf("%s: a record costs %.1f allocations in 5 parts, %.1f in 200", what, few, much)
		}
	}
	// A sender that never sends the last part does not make the replica's memory grow.
	h, parts := Replica{}, 0
	for i := range 4 * minSpare {
		h.TakeAll(wire.Records{Routes: all[i : i+1]}, wire.Span{To: "route z"})
		h.Take(wire.Records{Sources: []wire.Source{{Address: netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}}})
		h.Take(wire.Records{RemovedSources: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)})}})
		parts++
	}
	if n := len(h.cursor.left) + len(h.cursor.part); len(h.Routes) != 1 || n > 2*minSpare {
		t.Errorf("of %d routes it remembers %d after %d parts", len(h.Routes), n, parts)
	}
}

// BenchmarkTakeAll receives 50,000 routes that it already has, in parts.
func BenchmarkTakeAll(b *testing.B) {
	var h Replica
	all := manyRoutes(50_000)
	h.Take(wire.Records{Routes: all})
	parts, spans := inParts(all, 1000)
	for b.Loop() {
		for i, p := range parts {
			h.TakeAll(p, spans[i])
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(parts)), "ns/part")
}
