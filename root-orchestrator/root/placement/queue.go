package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// queue holds instances by urgency, the most urgent first, and those of one urgency in
// the order in which they were added.
type queue struct {
	classes []step.Queue[api.InstanceID] // by urgency
	class   map[api.InstanceID]int
}

// add appends the instance to its class, unless it is there.
func (q *queue) add(id api.InstanceID, urgency int) {
	if at, ok := q.class[id]; ok {
		if at == urgency {
			return
		}
		q.remove(id)
	}
	if q.class == nil {
		q.class, q.classes = map[api.InstanceID]int{}, make([]step.Queue[api.InstanceID], len(api.Priorities))
	}
	q.class[id] = urgency
	q.classes[urgency].Add(id)
}

func (q *queue) remove(id api.InstanceID) {
	if u, ok := q.class[id]; ok {
		q.classes[u].Remove(id)
		delete(q.class, id)
	}
}

func (q *queue) has(id api.InstanceID) bool { _, ok := q.class[id]; return ok }

func (q *queue) len() int { return len(q.class) }

// list returns a copy of the queue, the first to be served first.
func (q *queue) list() []api.InstanceID {
	out := make([]api.InstanceID, 0, len(q.class))
	for u := len(q.classes) - 1; u >= 0; u-- {
		out = append(out, q.classes[u].List()...)
	}
	return out
}
