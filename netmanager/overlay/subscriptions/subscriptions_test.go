package subscriptions_test

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/subscriptions"
)

const client = api.ServiceID("acme/shop.prod.client.eu")

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	local = netip.MustParseAddr("10.16.0.2")
)

func machine() *subscriptions.Machine {
	m := subscriptions.New(subscriptions.Config{
		Idle: 5 * time.Minute, Negative: 5 * time.Second, Poll: time.Minute, Quarantine: 2 * time.Minute, Max: 30, MaxOpen: 8,
	})
	m.SetLink(start, true)
	return m
}

func to(n int) subscriptions.Key {
	return subscriptions.Key{Address: netip.AddrFrom4([4]byte{10, 30, 0, byte(n)}), For: client}
}

// add subscribes, after dropping the victims of Room.
func add(m *subscriptions.Machine, now time.Time, k subscriptions.Key, o subscriptions.Outcome) bool {
	for {
		switch victim, ok := m.MakeRoom(k.For); {
		case !ok:
			return false
		case victim != nil:
			m.Drop(*victim)
			continue
		}
		m.Add(now, k, netip.Addr{}, o)
		return true
	}
}

func TestUnansweredSubscriptionsAreRequestedWithBackoff(t *testing.T) {
	m := machine()
	add(m, start, to(1), subscriptions.Unanswered)
	m.Message(start, true, false)
	var requests []time.Duration
	for now := m.Next(); now.Before(start.Add(2 * time.Minute)); now = m.Next() {
		if d := m.Expire(now); d.Ask == to(1) {
			m.RequestAgain(now, d.Ask, subscriptions.Unanswered)
			requests = append(requests, now.Sub(start))
		}
		m.Message(now, true, false)
	}
	if len(requests) != 8 || requests[0] != 500*time.Millisecond || requests[7]-requests[6] != 30*time.Second {
		t.Errorf("requested after %v, want 8 times, first after 500 ms and last every 30 s", requests)
	}
}

func TestEachWaitGetsOneReply(t *testing.T) {
	for _, test := range []struct {
		outcome subscriptions.Outcome
		want    subscriptions.Reply
	}{
		{subscriptions.Answered, subscriptions.Reply{Remote: to(1).Address}},
		{subscriptions.Denied, subscriptions.Reply{Local: local, Remote: to(1).Address, Refuse: true, Denied: true}},
		{subscriptions.Nowhere, subscriptions.Reply{Local: local, Remote: to(1).Address, Refuse: true}},
	} {
		m := machine()
		add(m, start, to(1), subscriptions.Unanswered)
		m.Wait(to(1), local)
		if got := m.Settle(start, to(1), subscriptions.Unanswered); len(got) != 0 {
			t.Errorf("an unanswered subscription replies %+v", got)
		}
		if got := m.Settle(start, to(1), test.outcome); len(got) != 1 || got[0] != test.want {
			t.Errorf("outcome %d: %+v, want %+v", test.outcome, got, test.want)
		}
		if got := m.Settle(start, to(1), test.outcome); len(got) != 0 {
			t.Errorf("outcome %d, again: %+v", test.outcome, got)
		}
	}
}

func TestOpenSubscriptionsAreBoundedPerService(t *testing.T) {
	m := machine()
	for n := range 20 {
		add(m, start, to(n), subscriptions.Unanswered)
	}
	open := m.OpenOf(client)
	if len(open) != 8 || open[0] != to(12) {
		t.Errorf("%d are open, the oldest is %v, want 8 and %v", len(open), open[0], to(12))
	}
}

func TestTheLargestSubscriberMakesRoom(t *testing.T) {
	m := machine()
	for n := range 30 {
		add(m, start, to(n), subscriptions.Answered)
	}
	other := func(n int) subscriptions.Key {
		k := to(n)
		k.For = "acme/shop.prod.other.eu"
		return k
	}
	for n := range 10 {
		if !add(m, start, other(n), subscriptions.Answered) {
			t.Fatalf("no room for subscription %d of another service", n)
		}
	}
	if n, o := len(m.Of(client)), len(m.Of(other(0).For)); n != 20 || o != 10 {
		t.Errorf("%d and %d subscriptions, want 20 and 10", n, o)
	}
	if add(m, start, to(99), subscriptions.Answered) {
		t.Error("the largest subscriber found room, though all its subscriptions are answered")
	}
}

func TestIdleSubscriptionsAreDroppedWhileConnected(t *testing.T) {
	m := machine()
	add(m, start, to(1), subscriptions.Answered)
	end := start.Add(6 * time.Minute)
	if m.Idle(end.Add(-time.Second), to(1), subscriptions.Answered) {
		t.Error("dropped before it is idle")
	}
	m.SetLink(start, false)
	if m.Idle(end, to(1), subscriptions.Answered) {
		t.Error("dropped while the cluster could not send the record again")
	}
	if !m.Idle(end, to(1), subscriptions.Nowhere) {
		t.Error("not dropped, though it leads nowhere")
	}
}

func TestRefusalsAreConfirmed(t *testing.T) {
	m := machine()
	add(m, start, to(1), subscriptions.Unanswered)
	m.SetRefusal(start, to(1), &wire.Refusal{Subscription: to(1)})
	if !m.Valid(start.Add(4*time.Second), to(1)) || m.Valid(start.Add(5*time.Second), to(1)) {
		t.Error("want the refusal to be valid for 5 s")
	}
	now := start.Add(time.Minute)
	m.Recheck(now, to(1), local)
	msg, _ := m.Message(now, true, false)
	if got := m.Confirm(now, msg.Seq-1); len(got) != 0 {
		t.Errorf("an earlier message confirms %v", got)
	}
	if got := m.Confirm(now, msg.Seq); len(got) != 1 || !m.Valid(now.Add(time.Second), to(1)) {
		t.Errorf("confirmed %v, want the refusal", got)
	}
}

func TestOneKeyServesAllSpellings(t *testing.T) {
	m := machine()
	spelt := func(name string) subscriptions.Key {
		return subscriptions.Key{Service: api.ServiceID("acme/shop.prod." + name + ".eu"), For: client}
	}
	if got := m.Spelling(spelt("Web")); got != spelt("web") {
		t.Errorf("subscribed to %v", got)
	}
	add(m, start, spelt("web"), subscriptions.Unanswered)
	m.SetRefusal(start, spelt("web"), &wire.Refusal{Subscription: spelt("web")})
	for i, name := range []string{"Web", "wEb", "weB", "WEb", "wEB"} {
		want := spelt(name)
		if i == 4 {
			want = spelt("web") // the bound is reached
		}
		got := m.Spelling(spelt(name))
		if got != want {
			t.Errorf("%s, after a refusal of web: subscribed to %v, want %v", name, got, want)
		}
		if !m.Has(got) {
			add(m, start, got, subscriptions.Unanswered)
		}
	}
}

func TestBudgetIsRefundedForAnsweredSubscriptions(t *testing.T) {
	m := machine()
	for n := range 2 * subscriptions.Burst {
		if !m.Spend(start, local) {
			t.Fatalf("no budget for request %d, though all were refunded", n)
		}
		m.Add(start, to(1), local, subscriptions.Unanswered)
		m.Settle(start, to(1), subscriptions.Answered)
		m.Drop(to(1))
	}
	n := 0
	for ; m.Spend(start, local); n++ {
	}
	if n != subscriptions.Burst || !m.Spend(start.Add(time.Second), local) {
		t.Errorf("%d requests at once, want %d, and another a second later", n, subscriptions.Burst)
	}
}

func TestSessionRepeatsUntilAcknowledged(t *testing.T) {
	m := machine()
	first, ok := m.Message(start, true, false)
	if !ok || !first.Whole || !first.Self || first.Seq != 1 {
		t.Fatalf("the first message is %+v, %v, want all subscriptions and a description", first, ok)
	}
	if _, ok := m.Message(start, true, false); ok {
		t.Error("a message without news")
	}
	now := m.Next()
	m.Expire(now)
	again, ok := m.Message(now, true, false)
	if !ok || !again.Resync || now.Sub(start) != time.Second {
		t.Fatalf("after %s: %+v, %v, want everything again after 1 s", now.Sub(start), again, ok)
	}
	m.Acknowledge(again.Seq)
	if at := m.Next(); !at.IsZero() {
		t.Errorf("after the acknowledgement something is due at %s", at)
	}
	m.Compare(now, 1, 2, again.Seq)
	m.Expire(m.Next())
	if msg, ok := m.Message(now, true, false); !ok || !msg.Resync {
		t.Errorf("after digests differed: %+v, %v, want everything", msg, ok)
	}
}

func TestLateMessagesAreDropped(t *testing.T) {
	m := machine()
	for _, test := range []struct {
		rev  uint64
		want bool
	}{{5, true}, {4, false}, {5, true}, {6, true}} {
		if got := m.Take(test.rev); got != test.want {
			t.Errorf("revision %d is taken: %v, want %v", test.rev, got, test.want)
		}
	}
	m.SetLink(start, false)
	m.SetLink(start, true)
	if !m.Take(1) {
		t.Error("the first message of a new connection is dropped")
	}
}

func TestRestoredSubscriptions(t *testing.T) {
	m := machine()
	add(m, start, to(1), subscriptions.Answered)
	add(m, start, to(2), subscriptions.Answered)
	docs := m.Save()
	next := machine()
	for _, d := range docs {
		if err := next.Restore(d, func(k subscriptions.Key) bool { return k == to(1) }); err != nil {
			t.Fatal(err)
		}
	}
	next.Restored(func(wire.Subscription) subscriptions.Outcome { return subscriptions.Answered })
	if got := fmt.Sprint(next.Of(client), len(next.OpenOf(client)), len(next.Save())); got != fmt.Sprint([]subscriptions.Key{to(1)}, 0, 1) {
		t.Errorf("subscriptions, open ones and deleted documents: %s", got)
	}
}
