package cluster

import (
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// areas are the cluster's own nodes by the places that they say they are in.
type areas struct {
	nodes   map[string]map[api.NodeID]bool
	points  map[string]points
	stirred uint64 // as of the last change of where any of them is
}

// points stand for all nodes of an area.
type points struct {
	of []api.Position
	at time.Time
}

// areaFresh is how long an area's points count: nodes come and go in it.
const areaFresh = 10 * time.Second

// areaPoints are where the nodes of an area are.
func (c *Core) areaPoints(area string) []api.Position {
	area = strings.ToLower(area)
	in := c.areas.nodes[area]
	if len(in) == 0 {
		return nil
	}
	if p, ok := c.areas.points[area]; ok && c.now.Sub(p.at) < areaFresh {
		return p.of
	}
	of := make([]api.Position, 0, len(in))
	for _, id := range step.Keys(in) {
		of = append(of, c.nodes[id].position())
	}
	of = scattered(of, maxPoints)
	if c.areas.points == nil {
		c.areas.points = map[string]points{}
	}
	c.areas.points[area] = points{of, c.now}
	return of
}

// locate notes which areas a node is in, or with nil that it is gone.
func (c *Core) locate(n *node, now []string) {
	if len(n.areas)+len(now) > 0 {
		c.stirring++
		c.areas.stirred = c.stirring
	}
	for _, a := range n.areas {
		delete(c.areas.nodes[a], n.info.ID)
		delete(c.areas.points, a)
		if len(c.areas.nodes[a]) == 0 {
			delete(c.areas.nodes, a)
		}
	}
	n.areas = slices.Clone(now)
	for _, a := range n.areas {
		if c.areas.nodes == nil {
			c.areas.nodes = map[string]map[api.NodeID]bool{}
		}
		if c.areas.nodes[a] == nil {
			c.areas.nodes[a] = map[api.NodeID]bool{}
		}
		c.areas.nodes[a][n.info.ID] = true
		delete(c.areas.points, a)
	}
}
