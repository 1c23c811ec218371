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

// half is a number whose name it shares with one other.
type half int

func (h half) Name() string       { return fmt.Sprintf("%03d", h/2) }
func (h half) Compare(o half) int { return cmp.Compare(h, o) }

// number is a number with a unique name.
type number int

func (n number) Name() string         { return fmt.Sprintf("%09d", n) }
func (n number) Compare(o number) int { return cmp.Compare(n, o) }

// TestCursorReturnsCurrentElements adds and removes elements between parts, repeats parts and
// goes back, and compares each part with all elements in its span.
func TestCursorReturnsCurrentElements(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var r Cursor[half]
		there := map[half]bool{}
		change := func() {
			n := half(rapid.IntRange(1, 60).Draw(t, "element"))
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
			var told []half
			of := r.Part(after, maps.Keys(there), func(n half) bool {
				if there[n] {
					told = append(told, n)
				}
				return len(told) < room
			})
			var want []half
			for n := range there {
				if of.Has(n.Name()) {
					want = append(want, n)
				}
			}
			slices.Sort(want)
			if of.After != after || !slices.Equal(told, want) {
				t.Fatalf("after %q the cursor returns %v in span %+v, want %v", after, told, of, want)
			}
			if !of.Last() && len(told) != room && len(told) != room+1 {
				t.Fatalf("a part that is not the last has %d elements, want %d", len(told), room)
			}
			switch rapid.IntRange(0, 5).Draw(t, "next") {
			case 0: // the part is lost
			case 1:
				after = half(rapid.IntRange(0, 60).Draw(t, "back to")).Name()
			default:
				if of.Last() {
					return
				}
				after = of.To
			}
		}
	})
}

// TestCursorReadsSetOnce counts how often the whole set is read: once, and again after more additions
// than the set had elements.
func TestCursorReadsSetOnce(t *testing.T) {
	const many, more = 10_000, 50
	var r Cursor[number]
	there, walks := map[number]bool{}, 0
	all := func(yield func(number) bool) {
		walks++
		maps.Keys(there)(yield)
	}
	for n := range number(many) {
		there[2*n] = true
	}
	told, parts := 0, 0
	for of := (wire.Span{}); ; parts++ {
		room := 100
		of = r.Part(of.To, all, func(number) bool { told++; room--; return room > 0 })
		if of.Last() {
			break
		}
		if parts < more {
			n := number(2*many - 2*parts - 1) // after all parts so far
			there[n] = true
			r.Add(n)
		}
	}
	if told != many+more || walks != 1 {
		t.Errorf("the set was read %d times and %d elements returned, want once and %d", walks, told, many+more)
	}
	for n := range number(3 * many) {
		if r.Add(n); len(r.left) > many+minSpare {
			t.Fatalf("the cursor keeps %d elements that nobody reads, want at most %d", len(r.left), many+minSpare)
		}
	}
	r.Part("", all, func(number) bool { return true })
	if walks != 2 {
		t.Errorf("the set was read %d times, want 2", walks)
	}
}

// BenchmarkSendAll sends a subscriber its complete set in parts: with Flush, and with Part.
func BenchmarkSendAll(b *testing.B) {
	for _, many := range []int{5_000, 50_000} {
		book, view := New[string](), revisions{}
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
