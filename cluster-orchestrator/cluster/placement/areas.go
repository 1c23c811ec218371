package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// areas are the cluster's own nodes by the places that they say they are in.
type areas struct {
	places  map[string]*sched.Places // of nodes
	changed uint64                   // number of the last change of a position of one of them
}

// locate notes which areas a node is in, or with nil that it is gone.
func (m *Machine) locate(n *node, now []string) {
	if len(n.areas)+len(now) > 0 {
		m.positions++
		m.areas.changed = m.positions
	}
	for _, a := range n.areas {
		if p := m.areas.places[a]; p != nil {
			if p.Drop(string(n.Info.ID)); p.Len() == 0 {
				delete(m.areas.places, a)
			}
		}
	}
	n.areas = slices.Compact(slices.Sorted(slices.Values(now)))
	for _, a := range n.areas {
		if m.areas.places == nil {
			m.areas.places = map[string]*sched.Places{}
		}
		if m.areas.places[a] == nil {
			m.areas.places[a] = &sched.Places{}
		}
		m.areas.places[a].Put(string(n.Info.ID), n.position())
	}
}
