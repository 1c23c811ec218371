package interest

import (
	"container/heap"
	"iter"
	"slices"

	"github.com/treeline-edge/treeline/internal/wire"
)

// Element is an element of the set that a Cursor iterates over. Compare orders elements with the
// same name.
type Element[T any] interface {
	comparable
	Name() string
	Compare(T) int
}

// Cursor iterates over a set in the order of names, part by part (see wire.Span). It sorts the
// set once for all parts and merges additions; the owner skips removed elements. A part may be
// repeated. The sender cuts parts with Part, the receiver follows with Within or Absent. The zero
// Cursor is at the beginning.
type Cursor[T Element[T]] struct {
	begun bool
	of    wire.Span  // the last part
	part  []*item[T] // its elements
	left  ordered[T] // a heap of the elements after the part, and of additions
	spare int        // number of further additions after which sorting the set again is cheaper
}

type item[T any] struct {
	name string
	it   T
}

// minSpare is the least number of additions before a cursor sorts its set again.
const minSpare = 1000

// Reset moves the cursor to the beginning.
func (r *Cursor[T]) Reset() { *r = Cursor[T]{} }

// Begun reports whether the cursor has left the beginning.
func (r *Cursor[T]) Begun() bool { return r.begun }

// Add adds an element. It does nothing at the beginning, because the whole set is read then.
func (r *Cursor[T]) Add(t T) {
	if !r.begun {
		return
	}
	if r.spare--; r.spare < 0 {
		r.Reset()
		return
	}
	r.push(&item[T]{t.Name(), t})
}

// push adds an element if it lies after the beginning of the last part.
func (r *Cursor[T]) push(i *item[T]) {
	if i.name > r.of.After {
		heap.Push(&r.left, i)
	}
}

// Part passes the elements after a name to add, in order, until add returns false because the
// part is full, and returns the span that they fill. Elements with the same name stay together.
// Part reads all only at the beginning and when the name is before the last part.
func (r *Cursor[T]) Part(after string, all iter.Seq[T], add func(T) bool) wire.Span {
	r.seek(after, all)
	for more := true; len(r.left) > 0; {
		if !more {
			r.of.To = r.part[len(r.part)-1].name
			break
		}
		for _, i := range r.next() {
			if i.name > after {
				more = add(i.it)
				r.part = append(r.part, i)
			}
		}
	}
	return r.of
}

// Within passes the elements in a span to keep, and drops those for which keep returns false.
// added is the number of elements that may be new; they do not count towards the additions after
// which the set is sorted again.
func (r *Cursor[T]) Within(of wire.Span, all iter.Seq[T], added int, keep func(T) bool) {
	r.seek(of.After, all)
	r.of = of
	r.spare += added
	for len(r.left) > 0 && (of.To == "" || r.left[0].name <= of.To) {
		for _, i := range r.next() {
			if i.name > of.After && keep(i.it) {
				r.part = append(r.part, i)
			}
		}
	}
}

// Absent returns the elements in a span that are not listed. After the last span the cursor is
// at the beginning again.
func (r *Cursor[T]) Absent(of wire.Span, all iter.Seq[T], listed map[T]bool) (absent []T) {
	r.Within(of, all, len(listed), func(t T) bool {
		if !listed[t] {
			absent = append(absent, t)
		}
		return listed[t]
	})
	if of.Last() {
		r.Reset()
	}
	return absent
}

// seek positions the cursor after a name, which may be the one before the last part.
func (r *Cursor[T]) seek(after string, all iter.Seq[T]) {
	if !r.begun || after < r.of.After {
		r.begin(after, all)
	}
	part := r.part
	r.of, r.part = wire.Span{After: after}, nil
	for _, i := range part {
		r.push(i)
	}
}

func (r *Cursor[T]) begin(after string, all iter.Seq[T]) {
	r.Reset()
	for t := range all {
		if name := t.Name(); name > after {
			r.left = append(r.left, &item[T]{name, t})
		}
	}
	heap.Init(&r.left)
	r.begun, r.spare = true, len(r.left)+minSpare
}

// next removes and returns the elements with the first name, in order, each once.
func (r *Cursor[T]) next() (same []*item[T]) {
	for len(r.left) > 0 && (len(same) == 0 || r.left[0].name == same[0].name) {
		same = append(same, heap.Pop(&r.left).(*item[T]))
	}
	if len(same) > 1 {
		slices.SortFunc(same, func(x, y *item[T]) int { return x.it.Compare(y.it) })
		same = slices.CompactFunc(same, func(x, y *item[T]) bool { return x.it == y.it })
	}
	return same
}

// ordered is a heap by name.
type ordered[T any] []*item[T]

func (o ordered[T]) Len() int           { return len(o) }
func (o ordered[T]) Less(i, j int) bool { return o[i].name < o[j].name }
func (o ordered[T]) Swap(i, j int)      { o[i], o[j] = o[j], o[i] }
func (o *ordered[T]) Push(x any)        { *o = append(*o, x.(*item[T])) }

func (o *ordered[T]) Pop() any {
	last := len(*o) - 1
	i := (*o)[last]
	(*o)[last] = nil
	*o = (*o)[:last]
	return i
}
