package step

import (
	"cmp"
	"slices"
)

// Queue keeps keys in the order in which they were added first. It is a leaf of
// a core's state; adding and removing cost the same whatever its length.
type Queue[K cmp.Ordered] struct {
	seq uint64
	at  map[K]uint64
}

// Add puts the key at the end, unless it is in the queue.
func (q *Queue[K]) Add(key K) {
	if _, ok := q.at[key]; ok {
		return
	}
	if q.at == nil {
		q.at = make(map[K]uint64)
	}
	q.seq++
	q.at[key] = q.seq
}

// Remove takes the key out, if it is in.
func (q *Queue[K]) Remove(key K) { delete(q.at, key) }

// Has reports whether the key is in the queue.
func (q *Queue[K]) Has(key K) bool { _, ok := q.at[key]; return ok }

// List is the queue's present content, oldest first.
func (q *Queue[K]) List() []K {
	type place struct {
		key K
		seq uint64
	}
	places := make([]place, 0, len(q.at))
	for k, seq := range q.at {
		places = append(places, place{k, seq})
	}
	slices.SortFunc(places, func(a, b place) int { return cmp.Compare(a.seq, b.seq) })
	keys := make([]K, len(places))
	for i, p := range places {
		keys[i] = p.key
	}
	return keys
}

// Keys are the keys of m in their order, for wherever an order can be seen.
func Keys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
