package root

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/bounds"
	"github.com/treeline-edge/treeline/internal/step"
)

// refuseValues records that a cluster sent values that are out of bounds: each is
// counted, and at most one event a minute names them and the sender.
func (c *Core) refuseValues(id api.ClusterID, v bounds.Violations) {
	cl := c.clusters[id]
	if cl == nil || v.Total == 0 {
		return
	}
	cl.refusedValues += uint64(v.Total)
	if text := cl.refusals.Add(c.now, v); text != "" {
		c.event(api.Event{Kind: "cluster", Object: string(id), Cluster: id, Reason: api.ReasonOutOfBounds, Detail: step.Clip(text)})
	}
}

// RefusedValues returns how many values of each cluster's messages were refused
// since the root started, because they were out of bounds.
func (c *Core) RefusedValues() map[api.ClusterID]uint64 {
	out := make(map[api.ClusterID]uint64, len(c.clusters))
	for id, cl := range c.clusters {
		out[id] = cl.refusedValues
	}
	return out
}
