package ipam

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
)

var (
	epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	addr  = netip.MustParseAddr
	cidr  = netip.MustParsePrefix
)

func TestAPoolSkipsReservedAddresses(t *testing.T) {
	p, err := NewPool(cidr("10.16.0.64/29"), Options{First: 2, Last: 1})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"10.16.0.66", "10.16.0.67", "10.16.0.68", "10.16.0.69", "10.16.0.70"} {
		if a, err := p.Take(epoch, netip.Addr{}); err != nil || a != addr(want) {
			t.Fatalf("%v %v, want %s", a, err, want)
		}
	}
	if _, err := p.Take(epoch, netip.Addr{}); !errors.Is(err, api.ErrUnavailable) || p.Free(epoch) != 0 {
		t.Fatalf("%v, %d free", err, p.Free(epoch))
	}
	for want, kind := range map[string]error{
		"10.16.0.64": api.ErrInvalid, "10.16.0.71": api.ErrInvalid, "10.16.0.72": api.ErrInvalid, "10.16.0.66": api.ErrConflict, "::1": api.ErrInvalid,
	} {
		if _, err := p.Take(epoch, addr(want)); !errors.Is(err, kind) {
			t.Errorf("%s: %v, want %v", want, err, kind)
		}
	}
}

func TestReleasedAddressesAreQuarantined(t *testing.T) {
	p, _ := NewPool(cidr("10.0.0.0/30"), Options{First: 1, Last: 1, Quarantine: time.Minute})
	a, _ := p.Take(epoch, netip.Addr{})
	b, _ := p.Take(epoch, netip.Addr{})
	p.Give(epoch, a)
	p.Give(epoch.Add(time.Second), a) // does nothing the second time
	if _, err := p.Take(epoch.Add(59*time.Second), netip.Addr{}); !errors.Is(err, api.ErrUnavailable) {
		t.Fatal(err)
	}
	if _, err := p.Take(epoch.Add(59*time.Second), a); !errors.Is(err, api.ErrUnavailable) || p.Taken(a) || !p.Taken(b) {
		t.Fatal(err)
	}
	if got, err := p.Take(epoch.Add(time.Minute), netip.Addr{}); err != nil || got != a {
		t.Fatal(got, err)
	}
}

func TestInvalidPrefixesAreRefused(t *testing.T) {
	for _, p := range []netip.Prefix{{}, netip.PrefixFrom(addr("10.0.0.1"), 24), cidr("fd00::/64"), cidr("10.0.0.0/32")} {
		if _, err := NewPool(p, Options{First: 1}); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("pool %s: %v", p, err)
		}
	}
	b := NewBlocks(26, 0)
	if err := b.Add(cidr("10.16.0.0/20")); err != nil {
		t.Fatal(err)
	}
	for _, p := range []netip.Prefix{{}, cidr("10.16.8.0/24"), cidr("10.0.0.0/8"), cidr("10.17.0.0/27")} {
		if err := b.Add(p); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("share %s: %v", p, err)
		}
	}
	for _, p := range []netip.Prefix{cidr("10.16.16.0/26"), cidr("10.16.0.0/27"), netip.PrefixFrom(addr("10.16.0.1"), 26)} {
		if _, err := b.Take(epoch, p); !errors.Is(err, api.ErrInvalid) {
			t.Errorf("block %s: %v", p, err)
		}
	}
}

func TestBlocksComeFromTheFirstShareWithRoom(t *testing.T) {
	b := NewBlocks(26, 0)
	if _, err := b.Take(epoch, netip.Prefix{}); !errors.Is(err, api.ErrUnavailable) {
		t.Fatal(err)
	}
	_, _ = b.Add(cidr("10.16.0.0/25")), b.Add(cidr("10.18.0.0/20"))
	for _, want := range []string{"10.16.0.0/26", "10.16.0.64/26", "10.18.0.0/26", "10.18.0.64/26"} {
		if p, err := b.Take(epoch, netip.Prefix{}); err != nil || p != cidr(want) {
			t.Fatalf("%v %v, want %s", p, err, want)
		}
	}
	b.Remove(cidr("10.18.0.0/20"))
	if _, err := b.Take(epoch, netip.Prefix{}); !errors.Is(err, api.ErrUnavailable) || !b.Taken(cidr("10.18.0.64/26")) {
		t.Fatal(err)
	}
	b.Give(epoch, cidr("10.18.0.64/26"))
	b.Give(epoch, cidr("10.18.0.0/26"))
	if b.Taken(cidr("10.18.0.0/26")) || len(b.whole) != 1 {
		t.Fatal("a withdrawn share outlives its blocks")
	}
}

func TestBlocksOfIPv6(t *testing.T) {
	p, err := NewPool(cidr("fd00::ff00/120"), Options{First: 1})
	if err != nil {
		t.Fatal(err)
	}
	if a, err := p.Take(epoch, netip.Addr{}); err != nil || a != addr("fd00::ff01") {
		t.Fatal(a, err)
	}
	b := NewBlocks(64, 0)
	if err := b.Add(cidr("fd00::/48")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Take(epoch, netip.Prefix{}); err != nil {
		t.Fatal(err)
	}
	if p, err := b.Take(epoch, netip.Prefix{}); err != nil || p != cidr("fd00:0:0:1::/64") {
		t.Fatal(p, err)
	}
}

// TestPoolAgreesWithAReference takes, gives and restarts at random, and compares the pool with a map of
// addresses.
func TestPoolAgreesWithAReference(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rest := time.Duration(rapid.IntRange(0, 60).Draw(t, "rest")) * time.Second
		o := Options{First: rapid.IntRange(0, 3).Draw(t, "first"), Last: rapid.IntRange(0, 3).Draw(t, "last"), Quarantine: rest}
		prefix := netip.PrefixFrom(addr("10.1.2.0"), rapid.IntRange(25, 29).Draw(t, "bits"))
		pool, err := NewPool(prefix, o)
		if err != nil {
			t.Fatal(err)
		}
		now := epoch
		all := addresses(prefix)
		usable := all[o.First : len(all)-o.Last]
		state := map[netip.Addr]time.Time{} // zero: taken; else the end of its quarantine
		status := func(a netip.Addr) (taken, rests bool) {
			until, ok := state[a]
			return ok && until.IsZero(), ok && until.After(now)
		}
		for range rapid.IntRange(0, 200).Draw(t, "steps") {
			a := all[rapid.IntRange(0, len(all)-1).Draw(t, "address")]
			switch rapid.IntRange(0, 5).Draw(t, "do") {
			case 0, 1:
				free := 0
				for _, u := range usable {
					if taken, rests := status(u); !taken && !rests {
						free++
					}
				}
				if n := pool.Free(now); n != free {
					t.Fatalf("%d free, want %d", n, free)
				}
				got, err := pool.Take(now, netip.Addr{})
				if (err == nil) != (free > 0) {
					t.Fatalf("%d free: %v", free, err)
				}
				if err == nil {
					if taken, rests := status(got); taken || rests {
						t.Fatalf("%s was handed out twice", got)
					}
					state[got] = time.Time{}
				}
			case 2:
				_, err := pool.Take(now, a)
				taken, rests := status(a)
				want := error(nil)
				switch i := distance(prefix.Addr(), a, 0); {
				case i < o.First || i >= len(all)-o.Last:
					want = api.ErrInvalid
				case taken:
					want = api.ErrConflict
				case rests:
					want = api.ErrUnavailable
				default:
					state[a] = time.Time{}
				}
				if !errors.Is(err, want) {
					t.Fatalf("take %s: %v, want %v", a, err, want)
				}
			case 3:
				pool.Give(now, a)
				if taken, _ := status(a); taken {
					state[a] = now.Add(rest)
				}
			case 4:
				now = now.Add(time.Duration(rapid.IntRange(0, 30).Draw(t, "pass")) * time.Second)
			case 5:
				pool, _ = NewPool(prefix, o)
				for a, until := range state {
					if !until.IsZero() {
						delete(state, a)
					} else if err := pool.Mark(a); err != nil {
						t.Fatal(err)
					}
				}
			}
			if taken, _ := status(a); pool.Taken(a) != taken {
				t.Fatalf("%s is taken: %v", a, !taken)
			}
		}
	})
}

func addresses(p netip.Prefix) (out []netip.Addr) {
	for a := p.Addr(); p.Contains(a); a = a.Next() {
		out = append(out, a)
	}
	return out
}

func BenchmarkTakeOfAFullPool(b *testing.B) {
	p, _ := NewPool(cidr("10.30.0.0/16"), Options{})
	for range 1<<16 - 1 {
		_, _ = p.Take(epoch, netip.Addr{})
	}
	for b.Loop() {
		a, err := p.Take(epoch, netip.Addr{})
		if err != nil {
			b.Fatal(err)
		}
		p.Give(epoch, a)
	}
}

func TestTheLongestQuarantinedIsTakenFirst(t *testing.T) {
	now := time.Unix(1e9, 0)
	p, _ := NewPool(cidr("10.0.0.0/29"), Options{First: 1, Last: 1, Quarantine: time.Minute})
	var all []netip.Addr
	for range 6 {
		a, err := p.Take(now, netip.Addr{})
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	if _, err := p.TakeEarly(now, 0); !errors.Is(err, api.ErrUnavailable) {
		t.Fatalf("all are in use: %v", err)
	}
	for _, i := range []int{3, 1, 4} {
		p.Give(now, all[i])
		now = now.Add(2 * time.Second)
	}
	if err := p.Mark(all[3]); err != nil { // in quarantine, which Mark ends
		t.Fatal(err)
	}
	if a, err := p.TakeEarly(now, 5*time.Second); err == nil {
		t.Fatalf("%s has rested for 4 s", a)
	}
	for _, want := range []netip.Addr{all[1], all[4]} {
		if a, err := p.TakeEarly(now, 2*time.Second); err != nil || a != want || !p.Taken(a) {
			t.Fatalf("%s, %v, not %s", a, err, want)
		}
	}
	if _, err := p.TakeEarly(now, 0); err == nil {
		t.Fatal("all are in use again")
	}
	p.Give(now, all[1])
	if now = now.Add(time.Minute); p.Free(now) != 1 {
		t.Fatalf("%d are free", p.Free(now))
	}
}
