package root

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
)

// TestWhatAClusterHasToKnowIsToldInParts has a cluster want 25,000 things
// elsewhere, and lose some of what it is told, and all of it once.
func TestWhatAClusterHasToKnowIsToldInParts(t *testing.T) {
	const many = 25_000
	w := newWorld(t, "a", "b")
	w.apply(2)
	w.settle()
	n := api.ClusterNet{Whole: true, Subnets: 1, Shares: w.shares("a")}
	for i := range many {
		// Answers are refusals: it hosts nothing of these, and names are long.
		want := api.Want{Service: api.ServiceID(fmt.Sprintf("t%d/shop.production.service-number-%d.production", i%5, i)), For: api.ServiceID(fmt.Sprintf("t%d/shop.production.client.production", i%5))}
		n.Wants, n.Wanted = append(n.Wants, want), n.Wanted.Toggle(want.Digest())
	}
	held := interest.Holder{}
	messages, largest, lost := 0, 0, 0
	loses := func() bool { messages++; return messages%7 == 3 }
	take := func(told []api.RootNet) {
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
			n.Held = held.Digest() ^ api.RootNet{Ranges: api.DefaultNetRanges(), Shares: n.Shares}.ShareDigest()
			take(w.net("a", n))
			n.Whole, n.Wants = false, nil
			if held.Digest() == w.c.net.book.Held("a") && len(held.Refused) == many && !w.c.net.book.Behind("a") && !w.c.clusters["a"].net.all.on {
				return
			}
			w.pass(lostAfter / 4)
		}
		t.Fatalf("%s: it holds %d of %d after %d messages", what, len(held.Refused), many, messages)
	}
	until("at first", 200)
	if messages < 8 || lost == 0 {
		t.Errorf("%d messages, %d lost", messages, lost)
	}
	held, messages = interest.Holder{}, 0
	until("after it forgot all", 400)
	if largest > 1<<20 {
		t.Errorf("the largest message has %d bytes", largest)
	}
	t.Logf("%d messages, the largest of %d bytes, %d were lost", messages, largest, lost)
	at := messages
	for range 5 {
		n.Held = held.Digest() ^ api.RootNet{Ranges: api.DefaultNetRanges(), Shares: n.Shares}.ShareDigest()
		take(w.net("a", n))
		w.pass(time.Second)
	}
	if messages > at {
		t.Errorf("%d more messages when it holds all", messages-at)
	}
}

// TestOnlyAllOfAClusterEndsTheWaitForIt: a root that starts while a cluster says all,
// in parts, hears the later ones alone, and asks for all of them.
func TestOnlyAllOfAClusterEndsTheWaitForIt(t *testing.T) {
	w := newWorld(t, "a", "b")
	w.apply(2)
	w.settle()
	shares := w.shares("a")
	part := func(after, to string) []api.RootNet {
		return w.net("a", api.ClusterNet{Whole: true, Of: api.Span{After: after, To: to}, Subnets: 1, Shares: shares})
	}
	waits := func() bool { return w.c.net.awaited["a"] }
	w.restart()
	if part("route m", ""); !waits() {
		t.Error("the last part alone ends the wait")
	}
	asked := false
	for range 3 {
		w.pass(time.Second)
		for _, m := range part("route m", "") {
			asked = asked || m.WantNet
		}
	}
	if !asked {
		t.Error("it is not asked for all")
	}
	part("", "route f")
	part("route m", "")
	if !waits() {
		t.Error("with a part missing, the wait ends")
	}
	part("", "route f")
	part("", "route d") // again, and shorter
	part("route d", "route m")
	if !waits() {
		t.Error("before the last part, the wait ends")
	}
	if part("route m", ""); waits() {
		t.Error("with all parts the wait lasts")
	}
}

// TestWhatNoClusterWantsAnyMoreIsForgotten has a cluster want 10,000 addresses and
// services elsewhere, and drop them.
func TestWhatNoClusterWantsAnyMoreIsForgotten(t *testing.T) {
	const many = 5_000
	w := spread(t)
	w.net("a", api.ClusterNet{Whole: true, Subnets: 1})
	w.net("b", api.ClusterNet{Whole: true, Subnets: 100})
	at := w.shares("b")[0].Addr()
	say := api.ClusterNet{Subnets: 1, Shares: w.shares("a"), Wants: []api.Want{{Service: web, For: web}}}
	for i := range many {
		at = at.Next()
		say.Wants = append(say.Wants, api.Want{Address: at, For: web}, api.Want{Service: api.ServiceID(fmt.Sprintf("acme/shop.prod.s%d.prod", i)), For: web})
	}
	w.net("a", say)
	b := &w.c.clusters["b"].net
	if len(b.asked) != many+1 || len(w.c.net.about) != 1 {
		t.Fatalf("b is asked for %d things, and %d wants are about services", len(b.asked), len(w.c.net.about))
	}
	// What a is told, it takes; that it says it holds nothing has it told all again.
	hears := func() (sources int) {
		for range 20 {
			for _, m := range w.net("a", api.ClusterNet{Subnets: 1, Shares: w.shares("a"), Rev: 1 << 62}) {
				sources += len(m.Sources)
			}
			w.pass(lostAfter)
		}
		return sources
	}
	hears()
	exports := api.ClusterNet{Subnets: 100, Shares: w.shares("b")}
	for _, want := range say.Wants {
		if want.Address.IsValid() {
			b := want.Address.As4()
			peer := api.Peer{Key: api.PeerKey{b[1], b[2], b[3] >> 6}, Subnets: []netip.Prefix{netip.PrefixFrom(want.Address, 26).Masked()}, Rev: 1}
			exports.Sources = append(exports.Sources, api.Source{Address: want.Address, Service: web, Peer: peer, Rev: 1})
		}
	}
	first := 0
	for _, m := range w.netTo("a", "b", exports) {
		first += len(m.Sources)
	}
	if n := first + hears(); n < many {
		t.Fatalf("a is told of %d addresses", n)
	}
	say.Wants, say.Dropped = nil, say.Wants
	w.net("a", say)
	hears()
	wants, _ := w.c.Interest()
	if wants+len(b.asked)+len(w.c.net.about)+len(b.exports.Sources) > 0 || w.c.net.book.Held("a") != 0 {
		t.Errorf("nothing is wanted, and the root keeps %d wants, of which %d are about services, asks b for %d things, and has %d of them; a holds %x",
			wants, len(w.c.net.about), len(b.asked), len(b.exports.Sources), w.c.net.book.Held("a"))
	}
}

// wanting are parts of a whole in which a cluster wants much, of several tenants.
func wanting(many, each int) (parts []api.ClusterNet) {
	var wants []api.Want
	for i := range many {
		wants = append(wants, api.Want{
			Service: api.ServiceID(fmt.Sprintf("t%d/shop.production.service-number-%d.production", i%5, i)),
			For:     api.ServiceID(fmt.Sprintf("t%d/shop.production.client.production", i%5)),
		})
	}
	slices.SortFunc(wants, func(a, b api.Want) int { return strings.Compare(api.WantName(a), api.WantName(b)) })
	of := api.Span{}
	for part := range slices.Chunk(wants, each) {
		of = api.Span{After: of.To, To: api.WantName(part[len(part)-1])}
		parts = append(parts, api.ClusterNet{Whole: true, Of: of, Wants: part})
	}
	parts[len(parts)-1].Of.To = ""
	return parts
}

// TestPartsCostWhatTheyWant has a cluster say again all that it wants, in few parts
// and in many: together those cost the same.
func TestPartsCostWhatTheyWant(t *testing.T) {
	const many = 5000
	w := newWorld(t, "a")
	cl := w.c.clusters["a"]
	cost := func(each int) float64 {
		parts := wanting(many, each)
		return testing.AllocsPerRun(1, func() {
			for i := range parts {
				w.c.netWants(cl, &parts[i])
			}
		}) / many
	}
	few := cost(many / 5)
	if much := cost(many / 100); much > 2*few+2 || w.c.net.book.Count("a") != many {
		t.Errorf("of %d wants each costs %.1f allocations in 5 parts, %.1f in 100", w.c.net.book.Count("a"), few, much)
	}
	last := wanting(many, many/5)[1]
	last.Wants = last.Wants[:1]
	if w.c.netWants(cl, &last); w.c.net.book.Count("a") != many-many/5+1 {
		t.Errorf("it wants %d, after a part with one", w.c.net.book.Count("a"))
	}
}

// BenchmarkNetWants is told again the 50,000 wants of a cluster.
func BenchmarkNetWants(b *testing.B) {
	w, parts := newWorld(b, "a"), wanting(50_000, 1000)
	cl := w.c.clusters["a"]
	take := func() {
		for i := range parts {
			w.c.netWants(cl, &parts[i])
		}
	}
	take()
	for b.Loop() {
		take()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(parts)), "ns/part")
}
