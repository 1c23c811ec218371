package sim

import (
	"container/heap"
	"time"
)

// moment is the true time since the world began. Machines see only their own clocks.
type moment = time.Duration

type event struct {
	at  moment
	seq uint64 // orders events of the same time
	do  func()
}

type queue []event

func (q queue) Len() int { return len(q) }

func (q queue) Less(i, j int) bool {
	if q[i].at != q[j].at {
		return q[i].at < q[j].at
	}
	return q[i].seq < q[j].seq
}

func (q queue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *queue) Push(x any) { *q = append(*q, x.(event)) }

func (q *queue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}

func (q *queue) plan(e event) { heap.Push(q, e) }

func (q *queue) next() event { return heap.Pop(q).(event) }
