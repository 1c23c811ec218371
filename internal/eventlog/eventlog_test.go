package eventlog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/treeline-edge/treeline/api"
)

func add(l *Log, store map[int]api.Event, e api.Event) {
	slot, deleted := l.Add(e)
	for _, s := range deleted {
		delete(store, s)
	}
	store[slot] = e
}

func restored(capacity int, store map[int]api.Event) *Log {
	l := NewLog(capacity)
	for slot, e := range store {
		l.Restore(slot, e)
	}
	for _, slot := range l.Restored() {
		delete(store, slot)
	}
	return l
}

func about(seq int, cluster api.ClusterID, tenant api.Tenant) api.Event {
	return api.Event{Seq: api.Revision(seq), Kind: "instance", Cluster: cluster, Tenant: tenant}
}

func TestTheLargestGroupLosesItsOldestEvent(t *testing.T) {
	l, store := NewLog(6), map[int]api.Event{}
	for i, e := range []api.Event{
		about(1, "b", "x"), about(2, "a", "x/1"), about(3, "a", "y"), about(4, "a", "x/2"), about(5, "b", "y"), about(6, "", ""),
		about(7, "a", "y"), // replaces 2: x, with the tenants below, has the most events on a
		about(8, "", ""),   // replaces 3: y has the most events on a
		about(9, "", ""),   // a and b have two each, as have "": of those, "" is the smallest
	} {
		add(l, store, e)
		if want := min(i+1, 6); len(l.List(Filter{})) != want || len(store) != want {
			t.Fatalf("%d events are listed and %d stored, want %d", len(l.List(Filter{})), len(store), want)
		}
	}
	got := ""
	for _, e := range l.List(Filter{}) {
		got += fmt.Sprint(e.Seq, " ")
	}
	if want := "1 4 5 7 8 9 "; got != want {
		t.Errorf("events %s, want %s", got, want)
	}
}

// TestTheStoreHoldsWhatTheLogHolds adds events at random and restarts with other capacities. The
// store has the events of the log.
func TestTheStoreHoldsWhatTheLogHolds(t *testing.T) {
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 1))
		capacity, store := 16, map[int]api.Event{}
		l := NewLog(capacity)
		for seq := range 500 {
			add(l, store, about(seq+1, api.ClusterID([]string{"", "a", "b"}[rng.IntN(3)]), api.Tenant([]string{"", "x", "y/z"}[rng.IntN(3)])))
			if all := l.List(Filter{}); all[len(all)-1].Seq != api.Revision(seq+1) {
				t.Fatalf("seed %d: the last event is %d, want %d", seed, all[len(all)-1].Seq, seq+1)
			}
			if rng.IntN(20) == 0 {
				capacity = 1 + rng.IntN(30)
				l = restored(capacity, store)
			}
			all := l.List(Filter{})
			if len(all) != len(store) || len(all) > capacity {
				t.Fatalf("seed %d: %d events are listed and %d stored, want equal numbers up to %d", seed, len(all), len(store), capacity)
			}
			for _, e := range all {
				found := false
				for _, s := range store {
					found = found || s == e
				}
				if !found {
					t.Fatalf("seed %d: event %d is not in the store", seed, e.Seq)
				}
			}
		}
	}
}

func TestFiltersSelectEvents(t *testing.T) {
	l := NewLog(10)
	app := api.Tenant("acme").App("shop", "prod")
	for i, e := range []api.Event{
		{Kind: "cluster", Object: "a", Cluster: "a"},
		{Kind: "app", Tenant: "acme", Object: app.Name()},
		{Kind: "instance", Tenant: "acme", Object: app.Name() + ".web.prod#0", Instance: "acme/shop.prod.web.prod#0"},
		{Kind: "app", Tenant: "acme/sub", Object: app.Name()},
		{Kind: "app", Tenant: "acmeister", Object: app.Name() + "x"},
	} {
		e.Seq = api.Revision(i + 1)
		l.Add(e)
	}
	for _, c := range []struct {
		filter Filter
		want   string
	}{
		{Filter{}, "[1 2 3 4 5]"},
		{Filter{Instance: "acme/shop.prod.web.prod#0"}, "[3]"},
		{Filter{Since: 3}, "[4 5]"},
		{Filter{Instance: "acme/shop.prod.web.prod#0", Since: 3}, "[]"},
	} {
		var seqs []api.Revision
		for _, e := range l.List(c.filter) {
			seqs = append(seqs, e.Seq)
		}
		if got := fmt.Sprint(seqs); got != c.want {
			t.Errorf("%+v selects %s, want %s", c.filter, got, c.want)
		}
	}
}
