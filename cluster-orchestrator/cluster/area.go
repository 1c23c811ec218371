package cluster

import (
	"slices"

	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// areas are the cluster's own nodes by the places that they say they are in.
type areas struct {
	places  map[string]*sched.Places // of nodes
	stirred uint64                   // as of the last change of where any of them is
}

// locate notes which areas a node is in, or with nil that it is gone.
func (c *Core) locate(n *node, now []string) {
	if len(n.areas)+len(now) > 0 {
		c.stirring++
		c.areas.stirred = c.stirring
	}
	for _, a := range n.areas {
		if p := c.areas.places[a]; p != nil {
			if p.Drop(string(n.info.ID)); p.Len() == 0 {
				delete(c.areas.places, a)
			}
		}
	}
	n.areas = slices.Compact(slices.Sorted(slices.Values(now)))
	for _, a := range n.areas {
		if c.areas.places == nil {
			c.areas.places = map[string]*sched.Places{}
		}
		if c.areas.places[a] == nil {
			c.areas.places[a] = &sched.Places{}
		}
		c.areas.places[a].Put(string(n.info.ID), n.position())
	}
}
