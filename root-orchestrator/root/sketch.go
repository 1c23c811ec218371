package root

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// sketch is a core of its own for trying out what would become of some
// applications: all clusters as they are now, and of what they have only the
// instances of these. It costs what these are; the rest is shared, and read only.
// What is done to it is neither saved nor told to anybody.
func (c *Core) sketch(apps []api.AppID, services []api.ServiceID) *Core {
	d := New(c.cfg)
	d.cfg.Asks = ""
	d.dry = true
	d.counter, d.clock, d.wall, d.now = c.counter, c.clock, c.wall, c.now
	for id, cl := range c.clusters {
		d.clusters[id] = cl.sketch()
	}
	for _, cand := range c.table.All() {
		d.table.Put(cand)
	}
	for _, id := range services {
		if s := c.services[id]; s != nil {
			d.sketchService(c, s)
		}
	}
	for _, id := range apps {
		if a := c.apps[id]; a != nil {
			n := *a
			n.Replicas, n.SpecRevs, n.Addresses = maps.Clone(a.Replicas), maps.Clone(a.SpecRevs), maps.Clone(a.Addresses)
			d.apps[id] = &n
			d.index(&n)
		}
	}
	return d
}

func (cl *cluster) sketch() *cluster {
	n := *cl
	n.assigned, n.others = map[api.InstanceID]*instance{}, len(cl.assigned)
	n.leaving, n.put, n.drop = map[api.InstanceID]api.Generation{}, map[api.InstanceID]bool{}, map[api.InstanceID]bool{}
	n.pending, n.byRuntime = map[api.InstanceID]reservation{}, maps.Clone(cl.byRuntime)
	n.tenants = map[api.Tenant]*tenantEvents{} // nothing is told of a sketch
	n.observed, n.log, n.net = map[api.InstanceID]api.Digest{}, nil, clusterNet{}
	return &n
}

func (c *Core) sketchService(from *Core, s *service) {
	n := c.service(s.id)
	n.peers, n.refused = maps.Clone(s.peers), s.refused.sketch()
	for id, in := range s.instances {
		i := *in
		i.refusals, i.asked = maps.Clone(in.refusals), ""
		i.Stopping = slices.Clone(in.Stopping)
		i.Placements, i.Moves = slices.Clip(in.Placements), slices.Clip(in.Moves)
		if in.Next != nil {
			t := *in.Next
			i.Next = &t
		}
		i.spot, i.spotIn = nil, ""
		c.enter(&i)
		c.locate(&i)
		for _, at := range i.clusters() {
			cl, real := c.clusters[at], from.clusters[at]
			if cl == nil || real.assigned[id] != in {
				continue
			}
			cl.assigned[id] = &i
			cl.others--
			if r, ok := real.pending[id]; ok {
				cl.pending[id] = r
			}
		}
	}
}
