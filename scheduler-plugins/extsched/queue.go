package extsched

import (
	"container/list"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// Queue is a priority queue of instances: the most urgent first, and among equals the one that
// was added first. Add, Remove and Pop take constant time. The zero Queue is empty.
type Queue struct {
	at    map[api.InstanceID]*list.Element // of a waiter
	lines map[int]*list.List               // by urgency
}

type waiter struct {
	id      api.InstanceID
	urgency int
}

// Add adds an instance behind those of its urgency. An instance that is in the queue keeps its
// position unless its urgency changes.
func (q *Queue) Add(id api.InstanceID, urgency int) {
	w := waiter{id, urgency}
	if at, ok := q.at[id]; ok {
		if at.Value == w {
			return
		}
		q.Remove(id)
	}
	if q.at == nil {
		q.at, q.lines = map[api.InstanceID]*list.Element{}, map[int]*list.List{}
	}
	if q.lines[urgency] == nil {
		q.lines[urgency] = list.New()
	}
	q.at[id] = q.lines[urgency].PushBack(w)
}

func (q *Queue) Remove(id api.InstanceID) {
	if at, ok := q.at[id]; ok {
		q.lines[at.Value.(waiter).urgency].Remove(at)
		delete(q.at, id)
	}
}

func (q *Queue) Has(id api.InstanceID) bool { _, ok := q.at[id]; return ok }

func (q *Queue) Len() int { return len(q.at) }

// Pop removes the first instance and returns it. ok is false if there is none.
func (q *Queue) Pop() (id api.InstanceID, ok bool) {
	for _, urgency := range slices.Backward(step.Keys(q.lines)) {
		if first := q.lines[urgency].Front(); first != nil {
			id = first.Value.(waiter).id
			q.Remove(id)
			return id, true
		}
	}
	return "", false
}

func (q *Queue) List() []api.InstanceID {
	ids := make([]api.InstanceID, 0, len(q.at))
	for _, urgency := range slices.Backward(step.Keys(q.lines)) {
		for at := q.lines[urgency].Front(); at != nil; at = at.Next() {
			ids = append(ids, at.Value.(waiter).id)
		}
	}
	return ids
}
