package cluster

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

func (n *node) sorted() []*instance {
	out := make([]*instance, 0, len(n.assigned))
	for _, id := range step.Keys(n.assigned) {
		out = append(out, n.assigned[id])
	}
	return out
}

// touch begins a new generation of the node's desired set, once a step.
func (c *Core) touch(n *node) {
	if c.touched[n.info.ID] {
		return
	}
	c.touched[n.info.ID] = true
	n.from = n.gen
	n.gen = max(c.nextGen(), n.gen+1)
	n.must = min(n.must, n.gen) // generations may have been lost with a newer copy of the store
}

// flushNodes sends what this step changed of the nodes' desired sets.
func (c *Core) flushNodes() {
	for _, id := range step.Keys(c.touched) {
		n := c.nodes[id]
		if n == nil {
			continue
		}
		if len(n.assigned) <= largeSet || n.from == 0 || len(n.put)+len(n.drop) > len(n.assigned)/2 {
			c.sendWhole(n)
		} else {
			timing := c.timing()
			d := api.Desired{Gen: n.gen, From: n.from, Digest: n.wanted, Timing: &timing, Purge: n.purging}
			for _, i := range step.Keys(n.put) {
				d.Put = append(d.Put, n.assigned[i].assignment())
			}
			d.Drop = step.Keys(n.drop)
			n.sentAt = c.now
			c.emit(id.Addr(), d)
		}
		clear(n.put)
		clear(n.drop)
	}
	clear(c.touched)
}

func (c *Core) sendWhole(n *node) {
	timing := c.timing()
	d := api.Desired{Gen: n.gen, Digest: n.wanted, Timing: &timing, Brokers: c.cfg.Brokers, Purge: n.purging}
	for _, in := range n.sorted() {
		d.Put = append(d.Put, in.assignment())
	}
	for _, id := range step.Keys(n.stays) {
		d.Put = append(d.Put, n.stays[id])
	}
	n.sentAt = c.now
	c.emit(n.info.ID.Addr(), d)
}

// timing and dead grow together with the number of nodes, so that signs of life
// cost a large cluster no more than a small one.
func (c *Core) timing() api.Timing {
	t := c.cfg.Timing
	return api.Timing{Beat: t.Beat * time.Duration(c.scale), Lease: t.Lease * time.Duration(c.scale)}
}

func (c *Core) dead() time.Duration { return c.cfg.Dead * time.Duration(c.scale) }

func (c *Core) rescale() {
	// It never shrinks: a node may still hold the longer lease.
	if s := 1 + len(c.nodes)/nodesAtBase; s > c.scale {
		c.scale = s
		c.saveMeta()
		for _, id := range step.Keys(c.nodes) {
			c.touch(c.nodes[id])
		}
	}
}
