package netbook

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

func TestSharesComeAheadOfNeedAndRest(t *testing.T) {
	w := newWorld(t, "a", "b")
	if got := w.shares("a"); len(got) != 0 {
		t.Fatalf("a cluster without the network has %v, want no share", got)
	}
	told := w.net("a", wire.ClusterNet{Whole: true, Subnets: 1})
	if len(told) != 1 || len(told[0].Shares) != 1 || told[0].Ranges != wire.DefaultNetRanges() {
		t.Fatalf("a is sent %+v, want one message with one share and the ranges", told)
	}
	w.net("a", wire.ClusterNet{Subnets: 50, Shares: w.shares("a")})
	if n := len(w.shares("a")); n != 1 {
		t.Errorf("a has %d shares for 50 nodes, want 1", n)
	}
	w.net("a", wire.ClusterNet{Subnets: 60, Shares: w.shares("a")})
	if n := len(w.shares("a")); n != 2 {
		t.Errorf("a has %d shares for 60 nodes, want 2 of 64 each", n)
	}
	had := w.shares("a")
	w.restart()
	if !slices.Equal(w.shares("a"), had) {
		t.Errorf("after a restart a has %v, want %v", w.shares("a"), had)
	}
	w.net("a", wire.ClusterNet{Whole: true, Subnets: 60, Shares: had})
	w.net("b", wire.ClusterNet{Whole: true, Subnets: 1_000_000})
	if n, err := len(w.shares("b")), w.book.ShareError("b"); n != 32 || err == "" {
		t.Errorf("one cluster gets %d shares and the error %q, want 32 and an error", n, err)
	}
	w.remove("a")
	w.join("c")
	w.cfg.ClusterPercent = 80
	w.restart()
	for _, id := range []api.ClusterID{"b", "c"} {
		w.net(id, wire.ClusterNet{Whole: true, Subnets: 1, Shares: w.shares(id)})
	}
	w.net("c", wire.ClusterNet{Whole: true, Subnets: 1_000_000})
	got := w.shares("c")
	if err := w.book.ShareError("c"); len(got) != 128-32-2-16 || !strings.Contains(err, "exhausted") {
		t.Errorf("c gets %d shares and the error %q, want %d and that the network is exhausted", len(got), err, 128-32-2-16)
	}
	for _, p := range had {
		if slices.Contains(got, p) {
			t.Errorf("%s is given again before it has rested", p)
		}
	}
	if e := w.events[len(w.events)-1]; !strings.Contains(e.Detail, "exhausted") {
		t.Errorf("the last event is %+v, want that the network is exhausted", e)
	}
	w.pass(31 * time.Minute)
	w.net("c", wire.ClusterNet{Subnets: 1_000_000, Shares: got})
	if n := len(w.shares("c")); n != 128-32-16 {
		t.Errorf("c has %d shares once the others have rested, want %d", n, 128-32-16)
	}
}

// Each cluster gets at most a quarter of the network, and the last eighth is for clusters without a
// share.
func TestAFewClustersCannotTakeTheWholeNetwork(t *testing.T) {
	w := newWorld(t, "a", "b", "c", "d", "e")
	for _, id := range []api.ClusterID{"a", "b", "c", "d"} {
		w.net(id, wire.ClusterNet{Whole: true, Subnets: 1_000_000})
	}
	w.net("e", wire.ClusterNet{Whole: true, Subnets: 1})
	if a, d, e := len(w.shares("a")), len(w.shares("d")), len(w.shares("e")); a != 32 || d != 128-3*32-16 || e != 1 {
		t.Fatalf("a has %d shares, d %d and e %d; want 32, %d and 1", a, d, e, 128-3*32-16)
	}
	// Returned shares rest, and until then count to the cluster.
	before := w.shares("a")
	told := w.net("a", wire.ClusterNet{Subnets: 1, Shares: before, Returned: before[1:]})
	if got := w.shares("a"); len(got) != 1 || len(told) != 1 || !slices.Equal(told[0].Shares, got) {
		t.Fatalf("a has %v and is sent %+v, want one share", got, told)
	}
	w.net("a", wire.ClusterNet{Subnets: 1, Shares: before, Returned: before[1:]}) // before it received the list of its shares
	w.net("a", wire.ClusterNet{Subnets: 1_000_000, Shares: w.shares("a")})
	if got := w.shares("a"); len(got) != 1 {
		t.Errorf("a cluster that takes and returns all the time has %d shares, want 1", len(got))
	}
	w.restart()
	for _, id := range []api.ClusterID{"a", "b", "c", "d", "e"} {
		w.net(id, wire.ClusterNet{Whole: true, Subnets: 1, Shares: w.shares(id)})
	}
	w.net("e", wire.ClusterNet{Subnets: 1_000_000, Shares: w.shares("e")})
	for _, p := range w.shares("e") {
		if slices.Contains(before, p) {
			t.Errorf("%s is given again before it has rested", p)
		}
	}
	w.pass(31 * time.Minute)
	w.net("e", wire.ClusterNet{Subnets: 1_000_000, Shares: w.shares("e")})
	if got := len(w.shares("e")); got != 128-1-32-32-16-16 {
		t.Errorf("once the others have rested e has %d shares, want %d", got, 128-1-32-32-16-16)
	}
}
