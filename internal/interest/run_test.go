package interest

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// TestARunTellsWhatThereIsThen lets things come and go between parts, repeats parts
// and goes back, and compares each part with all that there is in its span.
func TestARunTellsWhatThereIsThen(t *testing.T) {
	name := func(n int) string { return fmt.Sprintf("%03d", n/2) } // two have the same
	rapid.Check(t, func(t *rapid.T) {
		r, there := NewCursor(name, cmp.Compare[int]), map[int]bool{}
		change := func() {
			n := rapid.IntRange(1, 60).Draw(t, "thing")
			if there[n] {
				delete(there, n)
			} else {
				there[n] = true
				r.Add(n)
			}
		}
		for range rapid.IntRange(0, 50).Draw(t, "at first") {
			change()
		}
		for after := ""; ; {
			for range rapid.IntRange(0, 6).Draw(t, "changes") {
				change()
			}
			room := rapid.IntRange(1, 9).Draw(t, "room")
			var told []int
			of := r.Part(after, maps.Keys(there), func(n int) bool {
				if there[n] {
					told = append(told, n)
				}
				return len(told) < room
			})
			var want []int
			for n := range there {
				if of.Has(name(n)) {
					want = append(want, n)
				}
			}
			slices.Sort(want)
			if of.After != after || !slices.Equal(told, want) {
				t.Fatalf("behind %q it tells %v within %+v, where %v are", after, told, of, want)
			}
			if !of.Last() && len(told) != room && len(told) != room+1 {
				t.Fatalf("it tells %d with room for %d, and there are more", len(told), room)
			}
			switch rapid.IntRange(0, 5).Draw(t, "next") {
			case 0: // the part is lost
			case 1:
				after = name(rapid.IntRange(0, 60).Draw(t, "back to"))
			default:
				if of.Last() {
					return
				}
				after = of.To
			}
		}
	})
}

// TestARunWalksOnce counts how often all is walked: once, and again after more came
// than there was.
func TestARunWalksOnce(t *testing.T) {
	const many, more = 10_000, 50
	r, there, walks := NewCursor(func(n int) string { return fmt.Sprintf("%09d", n) }, cmp.Compare[int]), map[int]bool{}, 0
	all := func(yield func(int) bool) {
		walks++
		maps.Keys(there)(yield)
	}
	for n := range many {
		there[2*n] = true
	}
	told, parts := 0, 0
	for of := (wire.Span{}); ; parts++ {
		room := 100
		of = r.Part(of.To, all, func(int) bool { told++; room--; return room > 0 })
		if of.Last() {
			break
		}
		if parts < more {
			n := 2*many - 2*parts - 1 // behind all parts so far
			there[n] = true
			r.Add(n)
		}
	}
	if told != many+more || walks != 1 {
		t.Errorf("%d walks, %d of %d told", walks, told, many+more)
	}
	for n := range 3 * many {
		if r.Add(n); len(r.left) > many+leastSpare {
			t.Fatalf("with nobody to tell it keeps %d", len(r.left))
		}
	}
	r.Part("", all, func(int) bool { return true })
	if walks != 2 {
		t.Errorf("%d walks, want 2", walks)
	}
}

// BenchmarkTellAll tells a subscriber all that it should hold, part by part: as what
// has changed, and as a whole.
func BenchmarkTellAll(b *testing.B) {
	for _, many := range []int{5_000, 50_000} {
		book, view := New[string](), says{}
		for i := range many {
			w := wire.Subscription{Service: api.ServiceID(fmt.Sprintf("acme/shop.production.service-number-%d.production", i)), For: "acme/shop.production.client.production"}
			book.Subscribe("x", w, epoch)
			book.Answer("x", w, RouteOf(w.Service))
			view[RouteOf(w.Service)] = 1
		}
		flush := func() (parts int) {
			book.Reset("x")
			for more := true; more; more = book.Pending("x") {
				book.Flush("x", wire.MaxPart, view)
				parts++
			}
			return parts
		}
		recount := func() (parts int) {
			book.BeginResync("x")
			for of := (wire.Span{}); ; {
				_, of, _ = book.Part("x", of.To, wire.MaxPart, view)
				if parts++; of.Last() {
					return parts
				}
			}
		}
		for what, tell := range map[string]func() int{"flush": flush, "recount": recount} {
			b.Run(fmt.Sprintf("%s/%d", what, many), func(b *testing.B) {
				parts := 0
				for b.Loop() {
					parts += tell()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(parts), "ns/part")
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*many), "ns/record")
			})
		}
	}
}
