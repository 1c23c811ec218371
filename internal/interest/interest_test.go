package interest

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// revisions is a View with the revision of each resource; 0: it does not exist.
type revisions map[Key]uint64

func (s revisions) Route(id api.ServiceID) (api.Route, bool) {
	rev := s[RouteOf(id)]
	return api.Route{Service: id, Rev: rev}, rev > 0
}

func (s revisions) Source(a netip.Addr) (wire.Source, bool) {
	rev := s[SourceOf(a)]
	return wire.Source{Address: a, Rev: rev}, rev > 0
}

func (s revisions) Peer(k api.PeerKey) (api.Peer, bool) {
	rev := s[PeerOf(k)]
	return api.Peer{Key: k, Rev: rev}, rev > 0
}

func TestSubscriptionsAreCountedByWhetherTheyAreAnswered(t *testing.T) {
	b := New[api.NodeID]()
	web, api1 := wire.Subscription{Service: "acme/a.b.web.d", For: "acme/a.b.client.d"}, wire.Subscription{Service: "acme/a.b.api.d", For: "acme/a.b.client.d"}
	until := time.Unix(100, 0)
	b.Subscribe("n1", web, until)
	b.Subscribe("n1", api1, until)
	b.Subscribe("n2", web, until)
	b.Answer("n1", web, RouteOf(web.Service))
	if wants, open := b.Total(); wants != 3 || open != 2 {
		t.Errorf("%d wants, %d open", wants, open)
	}
	b.Remove("n1")
	if wants, open := b.Total(); wants != 1 || open != 1 {
		t.Errorf("%d wants, %d open", wants, open)
	}
}

// TestReplicasEqualThePublishedResources answers subscriptions at random, changes resources, loses messages and
// repairs losses by a resync. It compares the replicas with a plain map.
func TestReplicasEqualThePublishedResources(t *testing.T) {
	keys := []Key{
		RouteOf("acme/a.b.c.d"), RouteOf("acme/e.f.g.h"), SourceOf(netip.MustParseAddr("10.16.0.2")), PeerOf(api.PeerKey{1}), {},
	}
	subs := []string{"x", "y"}
	var wants []wire.Subscription
	for i := range 4 {
		wants = append(wants, wire.Subscription{Service: api.ServiceID(fmt.Sprintf("acme/s%d.b.c.d", i)), For: "acme/w.x.y.z"})
	}
	rapid.Check(t, func(t *rapid.T) {
		b, view := New[string](), revisions{}
		holders := map[string]*Replica{"x": {}, "y": {}}
		answers := map[string]map[wire.Subscription]Key{"x": {}, "y": {}}
		for range rapid.IntRange(1, 120).Draw(t, "steps") {
			s := rapid.SampledFrom(subs).Draw(t, "sub")
			w := rapid.SampledFrom(wants).Draw(t, "want")
			switch rapid.IntRange(0, 6).Draw(t, "do") {
			case 0, 1:
				if isNew := b.Subscribe(s, w, epoch); isNew != (!has(answers[s], w)) {
					t.Fatalf("new: %v", isNew)
				} else if isNew {
					answers[s][w] = Key{}
				}
			case 2:
				if b.Unsubscribe(s, w) != has(answers[s], w) {
					t.Fatal("dropped what it had not, or not what it had")
				}
				delete(answers[s], w)
			case 3:
				k := rapid.SampledFrom(keys).Draw(t, "key")
				if rapid.IntRange(0, 3).Draw(t, "refuse") == 0 {
					k = RefusalOf(w, rapid.Bool().Draw(t, "denied"))
				}
				if b.Answer(s, w, k); has(answers[s], w) {
					answers[s][w] = k
				}
			case 4:
				k := rapid.SampledFrom(keys[:4]).Draw(t, "key")
				if view[k]++; rapid.IntRange(0, 4).Draw(t, "gone") == 0 {
					view[k] = 0
				}
				b.Changed(k)
			case 5:
				if rapid.Bool().Draw(t, "restarts") {
					b.Reset(s)
					holders[s] = &Replica{}
				}
			case 6:
				b.Remove(s)
				holders[s], answers[s] = &Replica{}, map[wire.Subscription]Key{}
			}
			counted(t, b, s)
			for room := rapid.IntRange(1, 2000).Draw(t, "room"); ; {
				told, _ := b.Flush(s, room, view)
				if rapid.IntRange(0, 3).Draw(t, "lost") > 0 {
					holders[s].Take(told)
				}
				if !b.Pending(s) {
					break
				}
			}
			if holders[s].Digest() != b.Held(s) { // the digests reveal the loss
				recount(t, b, s, holders[s], answers[s], keys, view)
			}
			agree(t, holders[s], answers[s], view)
			counted(t, b, s)
			if holders[s].Digest() != b.Held(s) || b.Count(s) != len(answers[s]) {
				t.Fatalf("digest %x, want %x; %d wants of %d", holders[s].Digest(), b.Held(s), b.Count(s), len(answers[s]))
			}
			open := 0
			for _, k := range answers[s] {
				if k == (Key{}) {
					open++
				}
			}
			if b.Open(s) != open {
				t.Fatalf("%d open, want %d", b.Open(s), open)
			}
		}
		for _, s := range subs {
			for _, w := range wants {
				b.Unsubscribe(s, w)
			}
			b.Flush(s, 1<<20, view)
			if u := b.subs[s]; u != nil && len(u.subscriptions)+len(u.held)+len(u.changed) > 0 {
				t.Fatalf("with nothing wanted, %s has %d wants, %d records and %d changes", s, len(u.subscriptions), len(u.held), len(u.changed))
			}
		}
		if len(b.resources)+len(b.subjects)+len(b.callers) > 0 {
			t.Fatalf("with nothing wanted, there are %d records, %d subjects, %d callers", len(b.resources), len(b.subjects), len(b.callers))
		}
	})
}

// recount sends a subscriber its complete set again in parts, some of them twice, and some after
// changes of resources and answers.
func recount(t *rapid.T, b *Subscriptions[string], s string, h *Replica, answers map[wire.Subscription]Key, keys []Key, view revisions) {
	b.BeginResync(s)
	for after := ""; ; {
		for range rapid.IntRange(0, 2).Draw(t, "changes") {
			k := rapid.SampledFrom(keys[:4]).Draw(t, "key")
			if len(answers) > 0 && rapid.Bool().Draw(t, "another answer") {
				w := rapid.SampledFrom(slices.SortedFunc(maps.Keys(answers), wire.Subscription.Compare)).Draw(t, "want")
				if rapid.IntRange(0, 2).Draw(t, "refuse") == 0 {
					k = RefusalOf(w, rapid.Bool().Draw(t, "denied"))
				}
				b.Answer(s, w, k)
				answers[w] = k
			} else {
				view[k]++
				b.Changed(k)
			}
			news, _ := b.Flush(s, 1<<20, view)
			h.Take(news)
		}
		all, of, _ := b.Part(s, after, rapid.IntRange(1, 1000).Draw(t, "part"), view)
		if rapid.IntRange(0, 3).Draw(t, "part is lost") == 0 {
			continue
		}
		h.TakeAll(all, of)
		h.TakeAll(all, of)
		if of.Last() {
			b.EndResync(s)
			return
		}
		after = of.To
	}
}

// counted compares the digests with those of the resources that the subscriber was sent, and of those
// among them that no subscription leads to.
func counted(t *rapid.T, b *Subscriptions[string], s string) {
	var all, idle api.Digest
	if u := b.subs[s]; u != nil {
		for _, h := range u.held {
			if h.sent {
				all = all.Toggle(h.version)
			}
			if h.sent && h.subscriptions == 0 {
				idle = idle.Toggle(h.version)
			}
		}
		if u.sent != all || u.idle != idle {
			t.Fatalf("it counts %x, of which %x is idle, want %x and %x", u.sent, u.idle, all, idle)
		}
	}
}

func has[K comparable, V any](m map[K]V, k K) bool { _, ok := m[k]; return ok }

func agree(t *rapid.T, h *Replica, answers map[wire.Subscription]Key, view revisions) {
	want := map[Key]bool{}
	for _, k := range answers {
		if k.Kind == Refused || view[k] > 0 {
			want[k] = true
		}
	}
	got := map[Key]bool{}
	for id, r := range h.Routes {
		got[RouteOf(id)] = r.Rev == view[RouteOf(id)]
	}
	for a, s := range h.Sources {
		got[SourceOf(a)] = s.Rev == view[SourceOf(a)]
	}
	for k, p := range h.Peers {
		got[PeerOf(k)] = p.Rev == view[PeerOf(k)]
	}
	for w, r := range h.Refused {
		got[RefusalOf(w, r.Denied)] = true
	}
	if len(got) != len(want) {
		t.Fatalf("holds %v, want %v", got, want)
	}
	for k := range want {
		if !got[k] {
			t.Fatalf("holds %v, want %v", got, want)
		}
	}
}

func TestSubscriptionsAreFoundInAnyCase(t *testing.T) {
	b := New[string]()
	a := wire.Subscription{Service: "acme/Shop.prod.Web.prod", For: "acme/x.y.z.w"}
	c := wire.Subscription{Service: "acme/shop.prod.web.prod", For: "acme/q.y.z.w"}
	b.Subscribe("n1", a, epoch.Add(time.Minute))
	b.Subscribe("n2", c, epoch.Add(time.Hour))
	if got := b.About(wire.Subscription{Service: "acme/SHOP.prod.web.prod"}); len(got) != 2 || got[0].Subscription != a {
		t.Errorf("subscriptions about the service are %v, want 2", got)
	}
	if got := b.For("acme/q.y.z.w"); len(got) != 1 || got[0].Subscriber != "n2" {
		t.Errorf("subscriptions of the caller are %v, want one of n2", got)
	}
	if over, next := b.Expired("n1", epoch.Add(time.Minute)); len(over) != 1 || !next.IsZero() {
		t.Errorf("expired subscriptions are %v, next expiry %v, want one and no next", over, next)
	}
	b.Subscribe("n1", a, epoch.Add(time.Hour))
	if over, next := b.Expired("n1", epoch.Add(time.Minute)); len(over) != 0 || !next.Equal(epoch.Add(time.Hour)) {
		t.Errorf("expired subscriptions are %v, next expiry %v, want none, and the next in an hour", over, next)
	}
}

func TestNamesAreFoundInAnotherCaseIfTheyAreUnambiguous(t *testing.T) {
	names := Names{}
	for _, id := range []api.ServiceID{"t/a.b.Web.d", "t/a.b.api.d", "t/a.b.API.d"} {
		names.Add(id)
	}
	for spelt, want := range map[api.ServiceID]api.ServiceID{
		"t/a.b.web.d": "t/a.b.Web.d", "t/a.b.WEB.d": "t/a.b.Web.d", "t/a.b.api.d": "t/a.b.api.d", "t/a.b.API.d": "t/a.b.API.d", "t/a.b.Api.d": "", "t/x.b.c.d": "",
	} {
		if got, ok := names.Find(spelt); ok != (want != "") || got != want {
			t.Errorf("Find(%s) = %q, %v, want %q", spelt, got, ok, want)
		}
	}
}
