package root

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
)

// touch begins a new generation of the cluster's desired set, once a step.
func (c *Core) touch(cl *cluster) {
	if !c.dirty.first("desired", string(cl.Info.ID)) {
		return
	}
	c.dirty.touched = append(c.dirty.touched, cl.Info.ID)
	cl.from = cl.gen
	cl.gen = max(c.nextGen(), cl.gen+1)
}

// sendChange sends what this step changed of the cluster's desired set.
func (c *Core) sendChange(cl *cluster) {
	for _, id := range step.Keys(cl.drop) {
		cl.log = append(cl.log, removal{cl.gen, id})
	}
	if n := len(cl.log); n > keptRemovals {
		cl.floor = cl.log[n-keptRemovals-1].gen
		cl.log = slices.Clone(cl.log[n-keptRemovals:])
	}
	if cl.from == 0 {
		c.sendWhole(cl)
	} else {
		d := api.Desired{Gen: cl.gen, From: cl.from, Digest: cl.wanted, Drop: step.Keys(cl.drop)}
		for _, id := range step.Keys(cl.put) {
			d.Put = append(d.Put, c.assignment(cl.assigned[id], cl))
		}
		cl.sentAt = c.now
		c.emit(cl.Info.ID.Addr(), d)
	}
	clear(cl.put)
	clear(cl.drop)
}

func (c *Core) sendWhole(cl *cluster) {
	d := api.Desired{Gen: cl.gen, Digest: cl.wanted}
	for _, id := range step.Keys(cl.assigned) {
		d.Put = append(d.Put, c.assignment(cl.assigned[id], cl))
	}
	cl.sentAt = c.now
	c.emit(cl.Info.ID.Addr(), d)
}

// catchUp sends all that came after a generation, or everything where the log
// does not reach back so far.
func (c *Core) catchUp(cl *cluster, since api.Generation, has api.Digest) {
	switch {
	case since > cl.gen:
		// It holds a generation that this root never reached: the store was restored
		// from an older copy. Go on above it; the new generation goes out as a whole.
		cl.gen = since
		c.touch(cl)
		cl.from = 0
		return
	case since == cl.gen && has == cl.wanted:
		return
	case since == cl.gen, since == 0, since < cl.floor:
		c.sendWhole(cl)
		return
	}
	d := api.Desired{Gen: cl.gen, From: since, Digest: cl.wanted}
	for _, id := range step.Keys(cl.assigned) {
		if in := cl.assigned[id]; in.genAt(cl) > since {
			d.Put = append(d.Put, c.assignment(in, cl))
		}
	}
	seen := map[api.InstanceID]bool{}
	for _, r := range cl.log {
		if r.gen > since && cl.assigned[r.id] == nil && !seen[r.id] {
			seen[r.id] = true
			d.Drop = append(d.Drop, r.id)
		}
	}
	cl.sentAt = c.now
	c.emit(cl.Info.ID.Addr(), d)
}

func (c *Core) hello(h api.Hello) error {
	cl := c.clusters[h.Cluster]
	if cl == nil {
		return c.noCluster(h.Cluster)
	}
	c.catchUp(cl, h.Since, h.Digest)
	return nil
}
