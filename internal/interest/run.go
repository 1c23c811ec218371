package interest

import (
	"container/heap"
	"iter"
	"slices"

	"github.com/treeline-edge/treeline/internal/wire"
)

// Run iterates over a set in the order of names, part by part (see wire.Span). It sorts the
// set once for all parts; additions are merged in, and the owner skips what was removed. A
// part may be repeated. The sender cuts parts with Part, the receiver follows them with
// Within.
type Cursor[T comparable] struct {
	name    func(T) string
	compare func(a, b T) int

	begun bool
	of    wire.Span  // the last part
	told  []*item[T] // that it had
	left  ordered[T] // a heap of what lies behind it, or came since
	spare int        // so much may still come until it is cheaper to begin anew
}

type item[T any] struct {
	name string
	it   T
}

// NewRun makes a run. compare orders elements with the same name.
func NewCursor[T comparable](name func(T) string, compare func(a, b T) int) *Cursor[T] {
	return &Cursor[T]{name: name, compare: compare}
}

// Add adds an element. A nil Run ignores it.
func (r *Cursor[T]) Add(t T) {
	if r == nil || !r.begun {
		return
	}
	if r.spare--; r.spare < 0 { // perhaps most of it has gone again
		*r = *NewCursor(r.name, r.compare)
		return
	}
	r.push(&item[T]{r.name(t), t})
}

// push adds an element that lies after the beginning of the last part.
func (r *Cursor[T]) push(i *item[T]) {
	if i.name > r.of.After {
		heap.Push(&r.left, i)
	}
}

// Part calls tell with the elements after a name, in order, until tell reports that there is
// no more room, and returns the span that they fill. Elements with the same name stay
// together. It calls all at the beginning, and when the name is before the last part.
func (r *Cursor[T]) Part(after string, all iter.Seq[T], tell func(T) (room bool)) wire.Span {
	r.stand(after, all)
	for room := true; len(r.left) > 0; {
		if !room {
			r.of.To = r.told[len(r.told)-1].name
			break
		}
		for _, i := range r.next() {
			if i.name > after {
				room = tell(i.it)
				r.told = append(r.told, i)
			}
		}
	}
	return r.of
}

// Within calls stays for the known elements in a span, and drops those for which it returns
// false. As many as come may be new: they do not count towards the additions that make a new
// start cheaper.
func (r *Cursor[T]) Within(of wire.Span, all iter.Seq[T], come int, stays func(T) bool) {
	r.stand(of.After, all)
	r.of = of
	r.spare += come
	for len(r.left) > 0 && (of.To == "" || r.left[0].name <= of.To) {
		for _, i := range r.next() {
			if i.name > of.After && stays(i.it) {
				r.told = append(r.told, i)
			}
		}
	}
}

// stand positions the run after a name, which may be that of the last part.
func (r *Cursor[T]) stand(after string, all iter.Seq[T]) {
	if !r.begun || after < r.of.After {
		r.begin(after, all)
	}
	told := r.told
	r.of, r.told = wire.Span{After: after}, nil
	for _, i := range told {
		r.push(i)
	}
}

func (r *Cursor[T]) begin(after string, all iter.Seq[T]) {
	*r = *NewCursor(r.name, r.compare)
	for t := range all {
		if name := r.name(t); name > after {
			r.left = append(r.left, &item[T]{name, t})
		}
	}
	heap.Init(&r.left)
	r.begun, r.spare = true, len(r.left)+leastSpare
}

// leastSpare is the number of additions that a short run takes.
const leastSpare = 1000

// next removes and returns the elements with the first name, in order, each once.
func (r *Cursor[T]) next() (same []*item[T]) {
	for len(r.left) > 0 && (len(same) == 0 || r.left[0].name == same[0].name) {
		same = append(same, heap.Pop(&r.left).(*item[T]))
	}
	if len(same) > 1 {
		slices.SortFunc(same, func(x, y *item[T]) int { return r.compare(x.it, y.it) })
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
