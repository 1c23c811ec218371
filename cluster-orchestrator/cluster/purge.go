package cluster

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// purgeNode drains a node by force and sets Purge in its desired set. The order is kept
// for a node that is silent.
func (c *Core) purgeNode(id api.NodeID) error {
	n := c.nodes[id]
	if n == nil {
		return c.noNode(id)
	}
	if !n.purging {
		n.purging = true
		c.touch(n)
	}
	if err := c.drain(id, true); err != nil {
		return err
	}
	c.vacate(n)
	return nil
}

// vacate takes all instances off a node that is being purged, including those that have
// ended: their logs are there.
func (c *Core) vacate(n *node) {
	if n.silent {
		return // its instances are being placed elsewhere, and it is vacated when it is back
	}
	for _, in := range n.sorted() {
		switch {
		case in.ended():
			c.unassign(in, true)
			c.changed(in)
		case !in.Leaving && !in.Withdrawn:
			c.stopFirst(in, api.ReasonDrained)
		}
	}
	for _, i := range step.Keys(n.stays) {
		if in := c.instances[i]; in != nil {
			c.breakOff(in)
		}
	}
}

// endPurge takes the order back. A node that has received it already may still purge itself.
func (c *Core) endPurge(n *node) {
	if n.purging {
		n.purging, n.failing = false, ""
		c.touch(n)
	}
}

func (c *Core) nodePurging(id api.NodeID, p api.NodePurging) error {
	n := c.nodes[id]
	if n == nil {
		return c.noNode(id)
	}
	return within(c, id, p, func(p api.NodePurging) {
		if n.purging {
			n.failing = p.Failed
		}
	})
}

// nodeLeft removes a node that has deleted its workloads, keys and data. It may be called
// twice.
func (c *Core) nodeLeft(id api.NodeID) error {
	if c.nodes[id] == nil {
		return nil
	}
	return c.removeNode(id, true)
}
