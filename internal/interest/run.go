package interest

import (
	"container/heap"
	"iter"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Run goes through all of something in the order of names, part by part (see
// api.Span). What there is, is walked and put in order once for all parts, not for
// each: what comes in between is added, and what went its owner passes by. A part
// may be repeated. Who tells all cuts the parts (Part), and who is told takes them as
// they are (Within).
type Run[T comparable] struct {
	name    func(T) string
	compare func(a, b T) int

	begun bool
	of    api.Span   // the last part
	told  []*item[T] // that it had
	left  ordered[T] // a heap of what lies behind it, or came since
	spare int        // so much may still come until it is cheaper to begin anew
}

type item[T any] struct {
	name string
	it   T
}

// NewRun is a run that has not begun, through things of these names; compare orders
// what has the same name.
func NewRun[T comparable](name func(T) string, compare func(a, b T) int) *Run[T] {
	return &Run[T]{name: name, compare: compare}
}

// Add notes that something has come. A nil Run takes no note.
func (r *Run[T]) Add(t T) {
	if r == nil || !r.begun {
		return
	}
	if r.spare--; r.spare < 0 { // perhaps most of it has gone again
		*r = *NewRun(r.name, r.compare)
		return
	}
	r.push(&item[T]{r.name(t), t})
}

// push has what lies behind the last part's beginning told.
func (r *Run[T]) push(i *item[T]) {
	if i.name > r.of.After {
		heap.Push(&r.left, i)
	}
}

// Part calls tell with what lies behind a name, one after the other, until that
// says that there is no more room, and is the span that they fill: what has the same
// name is not parted. all is asked for at the beginning, and where the name lies
// before the last part.
func (r *Run[T]) Part(after string, all iter.Seq[T], tell func(T) (room bool)) api.Span {
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

// Within calls stays with what lies in a span and there was before, and forgets that of
// which it says no. So many may come with the span: they are not counted among those
// that make it cheaper to begin anew.
func (r *Run[T]) Within(of api.Span, all iter.Seq[T], come int, stays func(T) bool) {
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

// stand makes ready for the part behind a name, which may be the last one again.
func (r *Run[T]) stand(after string, all iter.Seq[T]) {
	if !r.begun || after < r.of.After {
		r.begin(after, all)
	}
	told := r.told
	r.of, r.told = api.Span{After: after}, nil
	for _, i := range told {
		r.push(i)
	}
}

func (r *Run[T]) begin(after string, all iter.Seq[T]) {
	*r = *NewRun(r.name, r.compare)
	for t := range all {
		if name := r.name(t); name > after {
			r.left = append(r.left, &item[T]{name, t})
		}
	}
	heap.Init(&r.left)
	r.begun, r.spare = true, len(r.left)+leastSpare
}

// leastSpare is how much may come in a run through little.
const leastSpare = 1000

// next takes out what has the first name, in order, each once.
func (r *Run[T]) next() (same []*item[T]) {
	for len(r.left) > 0 && (len(same) == 0 || r.left[0].name == same[0].name) {
		same = append(same, heap.Pop(&r.left).(*item[T]))
	}
	if len(same) > 1 {
		slices.SortFunc(same, func(x, y *item[T]) int { return r.compare(x.it, y.it) })
		same = slices.CompactFunc(same, func(x, y *item[T]) bool { return x.it == y.it })
	}
	return same
}

// ordered is a heap by names.
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
