package root

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// queue holds instances by their urgency, the most urgent first, and among equals
// in the order in which they came.
type queue struct {
	classes []step.Queue[api.InstanceID] // by urgency
	in      map[api.InstanceID]int       // its class
}

// add puts the instance behind those of its urgency, unless it is in the queue.
func (q *queue) add(in *instance) {
	u := in.Spec.Urgency()
	if at, ok := q.in[in.ID]; ok {
		if at == u {
			return
		}
		q.remove(in.ID)
	}
	if q.in == nil {
		q.in, q.classes = map[api.InstanceID]int{}, make([]step.Queue[api.InstanceID], len(api.Priorities))
	}
	q.in[in.ID] = u
	q.classes[u].Add(in.ID)
}

func (q *queue) remove(id api.InstanceID) {
	if u, ok := q.in[id]; ok {
		q.classes[u].Remove(id)
		delete(q.in, id)
	}
}

func (q *queue) has(id api.InstanceID) bool { _, ok := q.in[id]; return ok }

func (q *queue) len() int { return len(q.in) }

// list is the queue's present content, first come first.
func (q *queue) list() []api.InstanceID {
	out := make([]api.InstanceID, 0, len(q.in))
	for u := len(q.classes) - 1; u >= 0; u-- {
		out = append(out, q.classes[u].List()...)
	}
	return out
}

// byUrgency are the instances' ids, the most urgent first.
func (c *Core) byUrgency(of map[api.InstanceID]*instance) []api.InstanceID {
	ids := step.Keys(of)
	slices.SortStableFunc(ids, func(a, b api.InstanceID) int {
		return cmp.Compare(of[b].Spec.Urgency(), of[a].Spec.Urgency())
	})
	return ids
}
