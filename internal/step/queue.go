package step

import (
	"cmp"
	"maps"
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

func (q *Queue[K]) Remove(key K)   { delete(q.at, key) }
func (q *Queue[K]) Has(key K) bool { _, ok := q.at[key]; return ok }

// List returns the keys, oldest first.
func (q *Queue[K]) List() []K {
	keys := slices.AppendSeq(make([]K, 0, len(q.at)), maps.Keys(q.at))
	slices.SortFunc(keys, func(a, b K) int { return cmp.Compare(q.at[a], q.at[b]) })
	return keys
}

// Take removes all keys and returns them, oldest first.
func (q *Queue[K]) Take() []K {
	keys := q.List()
	clear(q.at)
	return keys
}

// Keys returns the keys of m in order.
func Keys[K cmp.Ordered, V any](m map[K]V) []K {
	keys := slices.AppendSeq(make([]K, 0, len(m)), maps.Keys(m))
	slices.Sort(keys)
	return keys
}
