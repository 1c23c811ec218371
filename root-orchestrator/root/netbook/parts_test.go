package netbook

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestALargeSetIsSentInParts has a cluster subscribe to 25,000 services, lose some messages, and
// once lose all its state.
func TestALargeSetIsSentInParts(t *testing.T) {
	const many = 25_000
	w := spread(t)
	n := wire.ClusterNet{Whole: true, Subnets: 1, Shares: w.shares("a")}
	for i := range many {
		// All answers are refusals, because the cluster hosts no caller. The names are long.
		want := wire.Subscription{Service: api.ServiceID(fmt.Sprintf("t%d/shop.production.service-number-%d.production", i%5, i)), For: api.ServiceID(fmt.Sprintf("t%d/shop.production.client.production", i%5))}
		n.Subscribe, n.Subscribed = append(n.Subscribe, want), n.Subscribed.Toggle(want.Digest())
	}
	held := interest.Replica{}
	messages, largest, lost := 0, 0, 0
	loses := func() bool { messages++; return messages%7 == 3 }
	take := func(told []wire.RootNet) {
		for _, m := range told {
			text, err := json.Marshal(m)
			if err != nil {
				t.Fatal(err)
			}
			if largest = max(largest, len(text)); loses() {
				lost++
				continue
			}
			if n.Rev, n.Shares = m.Rev, m.Shares; m.Whole {
				held.TakeAll(m.Records, m.Of)
			} else {
				held.Take(m.Records)
			}
		}
	}
	until := func(what string, rounds int) {
		t.Helper()
		for range rounds {
			n.Held = held.Digest() ^ wire.RootNet{Ranges: wire.DefaultNetRanges(), Shares: n.Shares}.ShareDigest()
			take(w.net("a", n))
			n.Whole, n.Subscribe = false, nil
			if held.Digest() == w.book.subs.Held("a") && len(held.Refused) == many && !w.book.subs.Pending("a") && !w.book.clusters["a"].resync.On() {
				return
			}
			w.pass(lostAfter / 4)
		}
		t.Fatalf("%s: the cluster holds %d of %d records after %d messages", what, len(held.Refused), many, messages)
	}
	until("at first", 200)
	if messages < 8 || lost == 0 {
		t.Errorf("%d messages were sent and %d lost, want at least 8 and 1", messages, lost)
	}
	held, messages = interest.Replica{}, 0
	until("after it forgot all", 400)
	if largest > 1<<20 {
		t.Errorf("the largest message has %d bytes, want at most 1 MiB", largest)
	}
	t.Logf("%d messages, the largest of %d bytes, %d were lost", messages, largest, lost)
	at := messages
	for range 5 {
		n.Held = held.Digest() ^ wire.RootNet{Ranges: wire.DefaultNetRanges(), Shares: n.Shares}.ShareDigest()
		take(w.net("a", n))
		w.pass(time.Second)
	}
	if messages > at {
		t.Errorf("%d messages were sent to a cluster that holds all, want 0", messages-at)
	}
}

// TestOnlyACompleteListEndsTheWait starts a root while a cluster lists everything in parts. The
// root receives only the later parts, and requests the whole list.
func TestOnlyACompleteListEndsTheWait(t *testing.T) {
	w := spread(t)
	shares := w.shares("a")
	part := func(after, to string) []wire.RootNet {
		return w.net("a", wire.ClusterNet{Whole: true, Of: wire.Span{After: after, To: to}, Subnets: 1, Shares: shares})
	}
	waits := func() bool { return w.book.awaited["a"] }
	w.restart()
	if part("route m", ""); !waits() {
		t.Error("the last part alone ended the wait")
	}
	asked := false
	for range 3 {
		w.pass(time.Second)
		for _, m := range part("route m", "") {
			asked = asked || m.RequestWhole
		}
	}
	if !asked {
		t.Error("the cluster was not asked to list all")
	}
	part("", "route f")
	part("route m", "")
	if !waits() {
		t.Error("the wait ended without one part")
	}
	part("", "route f")
	part("", "route d") // again, with a shorter part
	part("route d", "route m")
	if !waits() {
		t.Error("the wait ended before the last part")
	}
	if part("route m", ""); waits() {
		t.Error("the wait did not end after all parts")
	}
}

// TestUnsubscribingLeavesNothing has a cluster subscribe to 10,000 addresses and
// services of another one, and unsubscribe.
func TestUnsubscribingLeavesNothing(t *testing.T) {
	const many = 5_000
	w := spread(t)
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 100})
	at := w.shares("b")[0].Addr()
	say := wire.ClusterNet{Subnets: 1, Shares: w.shares("a"), Subscribe: []wire.Subscription{{Service: web, For: web}}}
	for i := range many {
		at = at.Next()
		say.Subscribe = append(say.Subscribe, wire.Subscription{Address: at, For: web}, wire.Subscription{Service: api.ServiceID(fmt.Sprintf("acme/shop.prod.s%d.prod", i)), For: web})
	}
	w.net("a", say)
	b := w.book.clusters["b"]
	if len(b.asked.List()) != many+1 || len(w.book.about) != 1 {
		t.Fatalf("b is asked for %d records, and %d subscriptions are about services; want %d and 1", len(b.asked.List()), len(w.book.about), many+1)
	}
	// Cluster a acknowledges each message but reports that it has nothing, so that everything is
	// sent again.
	resyncs := func() (sources int) {
		for range 20 {
			for _, m := range w.net("a", wire.ClusterNet{Subnets: 1, Shares: w.shares("a"), Rev: 1 << 62}) {
				sources += len(m.Sources)
			}
			w.pass(lostAfter)
		}
		return sources
	}
	resyncs()
	exports := wire.ClusterNet{Subnets: 100, Shares: w.shares("b")}
	for _, want := range say.Subscribe {
		if want.Address.IsValid() {
			b := want.Address.As4()
			peer := api.Peer{Key: api.PeerKey{b[1], b[2], b[3] >> 6}, Subnets: []netip.Prefix{netip.PrefixFrom(want.Address, 26).Masked()}, Rev: 1}
			exports.Sources = append(exports.Sources, wire.Source{Address: want.Address, Service: web, Peer: peer, Rev: 1})
		}
	}
	first := 0
	for _, m := range w.netTo("a", "b", exports) {
		first += len(m.Sources)
	}
	if n := first + resyncs(); n < many {
		t.Fatalf("a is sent %d addresses, want %d", n, many)
	}
	say.Subscribe, say.Unsubscribe = nil, say.Subscribe
	w.net("a", say)
	resyncs()
	wants, _ := w.book.Totals()
	if wants+len(b.asked.List())+len(w.book.about)+len(b.published.Sources) > 0 || w.book.subs.Held("a") != 0 {
		t.Errorf("without subscriptions there are still %d, %d of them about services; b is asked for %d records and has published %d; a holds %x",
			wants, len(w.book.about), len(b.asked.List()), len(b.published.Sources), w.book.subs.Held("a"))
	}
}

// wanting returns the parts of a list with subscriptions for several tenants.
func wanting(many, each int) (parts []wire.ClusterNet) {
	var wants []wire.Subscription
	for i := range many {
		wants = append(wants, wire.Subscription{
			Service: api.ServiceID(fmt.Sprintf("t%d/shop.production.service-number-%d.production", i%5, i)),
			For:     api.ServiceID(fmt.Sprintf("t%d/shop.production.client.production", i%5)),
		})
	}
	slices.SortFunc(wants, func(a, b wire.Subscription) int {
		return strings.Compare(a.Name(), b.Name())
	})
	of := wire.Span{}
	for part := range slices.Chunk(wants, each) {
		of = wire.Span{After: of.To, To: part[len(part)-1].Name()}
		parts = append(parts, wire.ClusterNet{Whole: true, Of: of, Subscribe: part})
	}
	parts[len(parts)-1].Of.To = ""
	return parts
}

// TestTheCostOfPartsIsThatOfTheirContent lists the same subscriptions in few parts and in many. The cost must be
// the same.
func TestTheCostOfPartsIsThatOfTheirContent(t *testing.T) {
	const many = 5000
	w := newWorld(t, "a")
	cl := w.book.clusters["a"]
	cost := func(each int) float64 {
		parts := wanting(many, each)
		return testing.AllocsPerRun(1, func() {
			for i := range parts {
				w.book.call(w.now, w).subscriptions(cl, &parts[i])
			}
		}) / many
	}
	few := cost(many / 5)
	if much := cost(many / 100); much > 2*few+2 || w.book.subs.Count("a") != many {
		t.Errorf("%d subscriptions cost %.1f allocations each in 5 parts and %.1f in 100; want %d that cost the same", w.book.subs.Count("a"), few, much, many)
	}
	last := wanting(many, many/5)[1]
	last.Subscribe = last.Subscribe[:1]
	if w.book.call(w.now, w).subscriptions(cl, &last); w.book.subs.Count("a") != many-many/5+1 {
		t.Errorf("after a part with one, there are %d subscriptions, want %d", w.book.subs.Count("a"), many-many/5+1)
	}
}

// BenchmarkSubscriptions measures another list of a cluster's 50,000 subscriptions.
func BenchmarkSubscriptions(b *testing.B) {
	w, parts := newWorld(b, "a"), wanting(50_000, 1000)
	cl := w.book.clusters["a"]
	take := func() {
		for i := range parts {
			w.book.call(w.now, w).subscriptions(cl, &parts[i])
		}
	}
	take()
	for b.Loop() {
		take()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(parts)), "ns/part")
}
