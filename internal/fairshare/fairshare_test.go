package fairshare

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
)

var start = time.Date(2026, 11, 23, 0, 0, 0, 0, time.UTC)

func bound(total int, share ...int) Bound {
	return Bound{Resource: "things", Total: total, Share: share}
}

// The properties of a pool under any sequence of requests: it never exceeds its total, its memory is
// proportional to its places, no holder exceeds its share, a holder without a place gets one while
// another has two, and a holder with at most an equal part is not evicted.
func TestNoHolderTakesThePoolFromOthers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(1, 24).Draw(t, "total")
		share := rapid.IntRange(0, 24).Draw(t, "share")
		policy := rapid.SampledFrom([]Policy{Keep, Replace, {Renew: true, RenewAfter: 3 * time.Second}}).Draw(t, "policy")
		p := NewPool(bound(total, share), policy)
		type held struct {
			place *Place
			group string
		}
		live := map[int]held{}
		count := func(group string) (n int) {
			for _, h := range live {
				if h.group == group {
					n++
				}
			}
			return n
		}
		now, id := start, 0
		for range rapid.IntRange(1, 200).Draw(t, "steps") {
			now = now.Add(time.Duration(rapid.IntRange(0, 2).Draw(t, "pause")) * time.Second)
			if rapid.IntRange(0, 4).Draw(t, "act") == 0 && len(live) > 0 {
				keys := make([]int, 0, len(live))
				for k := range live {
					keys = append(keys, k)
				}
				slices.Sort(keys)
				k := rapid.SampledFrom(keys).Draw(t, "released")
				if !live[k].place.Release() {
					t.Fatalf("place %d was gone without a call of evict", k)
				}
				delete(live, k)
				continue
			}
			group := fmt.Sprintf("g%d", rapid.IntRange(0, 5).Draw(t, "group"))
			member := fmt.Sprintf("m%d", rapid.IntRange(0, 3).Draw(t, "member"))
			before := map[string]int{}
			for _, h := range live {
				before[h.group]++
			}
			id++
			mine := id
			place, err := p.Take(now, []string{group, member}, func() { delete(live, mine) })
			switch {
			case err == nil:
				live[mine] = held{place, group}
			case !errors.Is(err, api.ErrTooMany) && !errors.Is(err, api.ErrUnavailable):
				t.Fatalf("refused with %v, which is of no kind", err)
			case before[group] == 0 && total > 1:
				for g, n := range before {
					if n >= 2 {
						t.Fatalf("%s has nothing and was refused while %s has %d: %v", group, g, n, err)
					}
				}
			}
			for g, n := range before {
				if g != group && count(g) < n && n <= before[group]+1 && !policy.Renew {
					t.Fatalf("%s had %d and lost one to %s, which had %d", g, n, group, before[group])
				}
			}
			if n := p.Size(); n > total || n != len(live) {
				t.Fatalf("the pool says it gave out %d places of %d, and %d are held", n, total, len(live))
			}
			if n := count(group); share > 0 && n > share {
				t.Fatalf("%s holds %d, over its share of %d", group, n, share)
			}
			groups := 0
			for _, g := range p.root.members {
				groups += 1 + len(g.members)
			}
			if groups > 2*total || len(p.root.order) != len(p.root.members) {
				t.Fatalf("the pool remembers %d groups for %d places", groups, total)
			}
		}
	})
}

func TestPlacesThatCannotBeTakenAwayLeaveRoomForOthers(t *testing.T) {
	p := NewPool(bound(64), Policy{Fixed: true})
	flood := func(name string) (n int) {
		for range 100 {
			if _, err := p.Take(start, []string{name}, nil); err == nil {
				n++
			}
		}
		return n
	}
	if n := flood("a"); n != 32 {
		t.Errorf("the first holder got %d of 64, want half", n)
	}
	if n := flood("b"); n != 16 {
		t.Errorf("the second got %d, want half of the rest", n)
	}
	if n := flood("c"); n == 0 {
		t.Error("a third got nothing")
	}
}

func TestStrangersEvictTheOldestOfTheLargestSubnet(t *testing.T) {
	p := NewPool(bound(4), Policy{Renew: true, RenewAfter: time.Second})
	var gone []string
	take := func(at time.Duration, name, addr string) error {
		_, err := p.Take(start.Add(at), Address(netip.MustParseAddr(addr)), func() { gone = append(gone, name) })
		return err
	}
	for i, name := range []string{"old", "b", "c", "other"} {
		addr := "192.0.2.7"
		if name == "other" {
			addr = "198.51.100.1"
		}
		if err := take(time.Duration(i)*time.Millisecond, name, addr); err != nil {
			t.Fatal(err)
		}
	}
	if err := take(10*time.Millisecond, "new", "203.0.113.1"); err != nil || !slices.Equal(gone, []string{"old"}) {
		t.Fatalf("a stranger of a third subnet: %v, evicted %q, want the oldest of the largest subnet", err, gone)
	}
	if err := take(20*time.Millisecond, "hasty", "192.0.2.7"); !errors.Is(err, api.ErrTooMany) {
		t.Fatalf("one more of the largest subnet: %v, want ErrTooMany while none of its places is a second old", err)
	}
	if err := take(2*time.Second, "late", "192.0.2.7"); err != nil || len(gone) != 2 || gone[1] != "b" {
		t.Fatalf("one more of the largest subnet later: %v, evicted %q, want its oldest", err, gone)
	}
}

func TestInventedKeysUseBoundedMemory(t *testing.T) {
	r := NewRates(bound(100), 1, 3)
	for i := range 100_000 {
		_ = r.Allow(start, fmt.Sprint("subnet", i/10), fmt.Sprint("address", i))
		if n := len(r.keys); n > 100 || n != r.pool.Size() {
			t.Fatalf("%d keys are remembered after %d, want at most 100", n, i+1)
		}
	}
}

// A flood of invented keys of one group neither drops the key of another group nor lowers its rate.
func TestRatesOfOneKeyDoNotTouchAnothers(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := NewRates(bound(50), 1, 5)
		now, left := start, 5.0
		for i := range rapid.IntRange(1, 200).Draw(t, "steps") {
			pause := time.Duration(rapid.IntRange(0, 1500).Draw(t, "ms")) * time.Millisecond
			now = now.Add(pause)
			left = min(5, left+pause.Seconds())
			for j := range rapid.IntRange(0, 100).Draw(t, "flood") {
				_ = r.Allow(now, "flood", fmt.Sprint(i, j))
			}
			err := r.Allow(now, "quiet", "me")
			if (err == nil) != (left >= 1) && (left < 0.999 || left > 1.001) {
				t.Fatalf("with %.3f tokens: %v", left, err)
			}
			var full *Full
			if err == nil {
				left--
			} else if !errors.As(err, &full) || full.Retry <= 0 || !errors.Is(err, api.ErrTooMany) {
				t.Fatalf("refused with %v, want ErrTooMany and when to try again", err)
			}
		}
	})
}

// One holder with any number of requests delays the request of another by one turn at most.
func TestNobodyWaitsForAllOfAnothersTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(bound(64), 1, 0)
		work := func(path []string, done func()) {
			leave, err := turns.Enter(t.Context(), time.Now(), path, false)
			if err != nil {
				return
			}
			time.Sleep(time.Second)
			leave()
			done()
		}
		for i := range 200 {
			go work([]string{"flood", fmt.Sprint(i)}, func() {})
		}
		synctest.Wait()
		if running, waiting := turns.Load(); running != 1 || waiting != 64 {
			t.Fatalf("%d run and %d wait, want 1 and 64", running, waiting)
		}
		began := time.Now()
		var took time.Duration
		work([]string{"quiet", "me"}, func() { took = time.Since(began) })
		if took == 0 || took > 3*time.Second {
			t.Errorf("the other holder was done after %v, want its turn after the one that ran and at most one more", took)
		}
		time.Sleep(time.Hour)
		if running, waiting := turns.Load(); running+waiting+len(turns.groups) != 0 {
			t.Errorf("%d run, %d wait and %d groups are remembered after all are done", running, waiting, len(turns.groups))
		}
	})
}

func TestUrgentHoldersGoFirstAndTheOthersGetAFifth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(bound(1000), 1, 0)
		var order []string
		enter := func(name string, urgent bool) {
			go func() {
				leave, err := turns.Enter(t.Context(), time.Now(), []string{name}, urgent)
				if err != nil {
					t.Error(err)
					return
				}
				order = append(order, strings.TrimRight(name, "0123456789"))
				time.Sleep(time.Second)
				leave()
			}()
			synctest.Wait()
		}
		for i := range 20 {
			enter(fmt.Sprint("common", i), false)
		}
		for i := range 20 {
			enter(fmt.Sprint("urgent", i), true)
		}
		time.Sleep(time.Minute)
		synctest.Wait() // orders the appends before what follows
		if n := strings.Count(strings.Join(order[1:21], " "), "urgent"); n != 16 {
			t.Errorf("%d of the 20 turns after the first were urgent, want 16: %v", n, order)
		}
	})
}

func TestWhoGivesUpLeavesNothingBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(bound(8), 1, 0)
		leave, err := turns.Enter(t.Context(), time.Now(), []string{"a"}, false)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := turns.Enter(ctx, time.Now(), []string{"b"}, false); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("waited without an end: %v", err)
		}
		leave()
		leave()
		if running, waiting := turns.Load(); running+waiting+len(turns.groups)+turns.queue.Size() != 0 {
			t.Errorf("%d run, %d wait, %d groups, %d places are left", running, waiting, len(turns.groups), turns.queue.Size())
		}
	})
}

func TestOneGroupHasAShareOfTheTurns(t *testing.T) {
	turns := NewTurns(bound(8), 4, 2)
	for range 2 {
		if _, err := turns.Enter(t.Context(), start, []string{"a"}, false); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := turns.Enter(ctx, start, []string{"a"}, false); err == nil {
		t.Error("a third turn of one group, want at most two at once")
	}
	if _, err := turns.Enter(t.Context(), start, []string{"b"}, false); err != nil {
		t.Errorf("another group: %v", err)
	}
}

func TestWaitersForAResourceHoldNoTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turns := NewTurns(bound(64), 4, 3).Each(1)
		enter := func(resource, group string) *func() {
			var leave func()
			go func() {
				leave, _ = turns.Using(t.Context(), start, resource, []string{group}, false)
			}()
			synctest.Wait()
			return &leave
		}
		first := enter("n0", "a")
		second := enter("n0", "a")
		third := enter("n0", "b")
		if *first == nil || *second != nil || *third != nil {
			t.Fatal("one worker was wanted for n0")
		}
		other := enter("n1", "a")
		if *other == nil {
			t.Fatal("n1 waits for those that wait for n0")
		}
		(*first)()
		synctest.Wait()
		if *third == nil || *second != nil {
			t.Fatal("the next turn of n0 is not that of the group with no worker")
		}
		(*third)()
		(*other)()
		synctest.Wait()
		if *second == nil {
			t.Fatal("the last waiter got no turn")
		}
		(*second)()
		if running, waiting := turns.Load(); running != 0 || waiting != 0 || len(turns.uses) != 0 || len(turns.groups) != 0 {
			t.Errorf("left: %d workers, %d waiters, %v, %v", running, waiting, turns.uses, turns.groups)
		}
	})
}

func TestAddressesShareBySubnetAndCustomer(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.7:99":             "192.0.2.0/24 192.0.2.7/32",
		"[::ffff:192.0.2.7]:1":     "192.0.2.0/24 192.0.2.7/32",
		"[2001:db8:1:2::3]:1":      "2001:db8:1::/48 2001:db8:1:2::/64",
		"[fe80::1%eth0]:1":         "fe80::/48 fe80::/64",
		"@":                        "unknown unknown",
		"/run/treeline/admin.sock": "unknown unknown",
	} {
		if got := strings.Join(Remote(in), " "); got != want {
			t.Errorf("Remote(%q) = %q, want %q", in, got, want)
		}
	}
}
