package step

import (
	"cmp"
	"slices"
)

// Queue keeps keys in the order in which they were first added. Adding and removing take
// constant time.
type Queue[K cmp.Ordered] struct {
	seq uint64
	at  map[K]uint64
}

// Add appends the key, unless it is in the queue.
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

// Remove removes the key, if it is in the queue.
func (q *Queue[K]) Remove(key K) { delete(q.at, key) }

// Has reports whether the key is in the queue.
func (q *Queue[K]) Has(key K) bool { _, ok := q.at[key]; return ok }

// List returns the keys, oldest first.
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

// Keys returns the sorted keys of m, for where the order is visible.
func Keys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := make([]K, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
