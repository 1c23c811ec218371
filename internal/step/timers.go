package step

import (
	"container/heap"
	"time"
)

// Timers has one time per key. Set and Pop are O(log n).
type Timers[K comparable] struct {
	at   map[K]*timer[K]
	heap timerHeap[K]
	seq  uint64
}

type timer[K comparable] struct {
	key K
	at  time.Time
	seq uint64 // equal times fire in the order in which they were set
	pos int
}

func (t *Timers[K]) Set(key K, at time.Time) {
	t.seq++
	if e, ok := t.at[key]; ok {
		e.at, e.seq = at, t.seq
		heap.Fix(&t.heap, e.pos)
		return
	}
	if t.at == nil {
		t.at = make(map[K]*timer[K])
	}
	e := &timer[K]{key: key, at: at, seq: t.seq}
	t.at[key] = e
	heap.Push(&t.heap, e)
}

// SetEarlier sets the key's time, unless it has an earlier one.
func (t *Timers[K]) SetEarlier(key K, at time.Time) {
	if e, ok := t.at[key]; ok && !at.Before(e.at) {
		return
	}
	t.Set(key, at)
}

func (t *Timers[K]) Clear(key K) {
	if e, ok := t.at[key]; ok {
		heap.Remove(&t.heap, e.pos)
		delete(t.at, key)
	}
}

func (t *Timers[K]) Has(key K) bool {
	_, ok := t.at[key]
	return ok
}

// Pop removes and returns the earliest key whose time is not after now.
func (t *Timers[K]) Pop(now time.Time) (key K, ok bool) {
	if len(t.heap) == 0 || t.heap[0].at.After(now) {
		return key, false
	}
	e := heap.Pop(&t.heap).(*timer[K])
	delete(t.at, e.key)
	return e.key, true
}

// Next returns the earliest time, or the zero time.
func (t *Timers[K]) Next() time.Time {
	if len(t.heap) == 0 {
		return time.Time{}
	}
	return t.heap[0].at
}

// Earliest returns the earliest of the times that are not zero, or the zero time.
func Earliest(times ...time.Time) (first time.Time) {
	for _, t := range times {
		if first.IsZero() || !t.IsZero() && t.Before(first) {
			first = t
		}
	}
	return first
}

type timerHeap[K comparable] []*timer[K]

func (h timerHeap[K]) Len() int { return len(h) }

func (h timerHeap[K]) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].seq < h[j].seq
}

func (h timerHeap[K]) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].pos, h[j].pos = i, j
}

func (h *timerHeap[K]) Push(x any) {
	e := x.(*timer[K])
	e.pos = len(*h)
	*h = append(*h, e)
}

func (h *timerHeap[K]) Pop() any {
	old := *h
	e := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return e
}
