package cluster

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Plan says where instances would go that come one after the other, if nothing
// else changed, and who would make way for them. It reserves nothing.
func (c *Core) Plan(r api.ClusterPlanRequest) api.ClusterPlan {
	t := tentative{c: c, placed: map[api.NodeID]int{}}
	defer func() {
		for _, u := range slices.Backward(t.undo) {
			u()
		}
	}()
	out := api.ClusterPlan{Instances: make([]api.InstancePlan, 0, len(r.Instances))}
	for i := range r.Instances {
		out.Instances = append(out.Instances, t.plan(&r.Instances[i]))
	}
	return out
}

// tentative is a plan that is being made: what it gives away counts for what is
// planned after it, until it is undone.
type tentative struct {
	c      *Core
	placed map[api.NodeID]int // instances by this plan; with it, the node is a copy
	held   api.Resources
	undo   []func() // the last first
}

func (t *tentative) plan(q *api.WhyRequest) api.InstancePlan {
	c, d := t.c, demandOf(q.Instance, &q.Spec)
	in := &instance{demand: d}
	in.Want = api.Assignment{Instance: q.Instance, Spec: q.Spec, Targets: q.Targets}
	used := c.used
	c.used = used.Plus(t.held) // what was planned before counts
	defer func() { c.used = used }()
	over := c.overShare(in)
	req, best, ok := c.findFor(in.placing(), in.seed())
	v := api.InstancePlan{ID: q.Instance, Action: "place", Cluster: c.cfg.ID, Node: api.NodeID(best.ID), Score: best.Score}
	if !ok || over != nil {
		n, victims := c.wayFor(in, &req)
		switch {
		case n == nil && over != nil:
			return waits(q.Instance, *over)
		case n == nil:
			return waits(q.Instance, sched.Explain(c.rank(&req, in.seed())))
		}
		v.Node, v.Displaces, v.Score = n.info.ID, len(victims) > 0, 0
		for _, other := range victims {
			v.MakeWay = append(v.MakeWay, other.id())
		}
		slices.Sort(v.MakeWay)
		t.clear(n.info.ID, victims)
	}
	v.Headroom = headroom(&req, c.table.Get(string(v.Node)))
	t.give(v.Node, in)
	return v
}

func waits(id api.InstanceID, why api.Explanation) api.InstancePlan {
	return api.InstancePlan{ID: id, Action: "wait", Why: &why}
}

// on is a copy of a node, in whose books the plan may write.
func (t *tentative) on(id api.NodeID) *node {
	c := t.c
	n := c.nodes[id]
	if _, copied := t.placed[id]; copied {
		return n
	}
	own, cand := *n, *c.table.Get(string(id))
	own.assigned, own.booked, own.ports = maps.Clone(n.assigned), maps.Clone(n.booked), maps.Clone(n.ports)
	c.nodes[id], t.placed[id] = &own, 0
	t.undo = append(t.undo, func() {
		c.nodes[id] = n
		c.table.Put(cand)
	})
	return &own
}

// give has an instance be on a node.
func (t *tentative) give(id api.NodeID, in *instance) {
	n, key := t.on(id), in.id()+" planned" // it may be there already as it was
	n.book(key, in.demand.claim)
	n.publish(key, in.demand.ports)
	t.placed[id]++
	t.held = t.held.Plus(in.demand.claim.Room)
	t.undo = append(t.undo, t.c.pretend(in.id().Service(), string(id), +1))
	t.show(n)
}

// clear has others not be there, nor those that are leaving.
func (t *tentative) clear(id api.NodeID, victims []*instance) {
	n := t.on(id)
	for gone := range n.ending() {
		t.held = t.held.Minus(n.booked[gone].Room)
		n.book(gone, claim{})
		n.unpublish(gone)
	}
	for _, v := range victims {
		t.held = t.held.Minus(n.booked[v.id()].Room)
		n.book(v.id(), claim{})
		n.unpublish(v.id())
		delete(n.assigned, v.id())
		t.undo = append(t.undo, t.c.pretend(v.id().Service(), string(id), -1))
	}
	t.show(n)
}

// show has those that are planned later see the node as it would be.
func (t *tentative) show(n *node) {
	n.counts = true
	cand := t.c.candidate(n, n.out())
	cand.Load += t.placed[n.info.ID]
	t.c.table.Put(cand)
}

// pretend counts an instance of a service as being on a node, or as not being there
// any more, for those that are planned after it, until it is undone.
func (c *Core) pretend(id api.ServiceID, node string, by int) (undo func()) {
	s, fresh := c.services[id], false
	if s == nil {
		s, fresh = c.newService(id), true
	}
	count := func(by int) { c.peer(s, node, by) }
	count(by)
	return func() {
		count(-by)
		if fresh {
			c.dropService(id)
		}
	}
}

// headroom is what a request's place would have left, need by need and bound by
// bound.
func headroom(req *sched.Request, cand *sched.Candidate) (out []string) {
	left := cand.Free.Minus(req.Needs)
	for _, part := range []struct {
		name       string
		need, left int64
		format     func(int64) string
	}{
		{sched.ConstraintVCPUs, req.Needs.MilliCPU, left.MilliCPU, func(n int64) string { return fmt.Sprintf("%g", float64(n)/1000) }},
		{sched.ConstraintMemory, req.Needs.MemoryMB, left.MemoryMB, mebibytes},
		{sched.ConstraintStorage, req.Needs.StorageMB, left.StorageMB, mebibytes},
		{sched.ConstraintBandwidthIn, req.Needs.InMbit, left.InMbit, func(n int64) string { return fmt.Sprintf("%d Mbit/s", n) }},
		{sched.ConstraintBandwidthOut, req.Needs.OutMbit, left.OutMbit, func(n int64) string { return fmt.Sprintf("%d Mbit/s", n) }},
	} {
		if part.need > 0 {
			out = append(out, part.name+" "+part.format(part.left))
		}
	}
	for _, d := range req.Devices {
		out = append(out, fmt.Sprintf("%s %d", d.Name, cand.Rooms[0].Devices[d.Name]-d.Count))
	}
	for i := range req.Bounds {
		if text := margin(&req.Bounds[i], cand); text != "" {
			out = append(out, text)
		}
	}
	return out
}

func mebibytes(n int64) string {
	if n >= 10*1024 {
		return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/1024), ".0") + " GiB"
	}
	return fmt.Sprintf("%d MiB", n)
}

// margin is how far within a bound a candidate is: "latency 12 ms of 20 to pre.prod".
func margin(b *sched.Bound, cand *sched.Candidate) string {
	at := api.Position{Node: api.NodeID(cand.ID), Geo: cand.Geo, Coord: cand.Coord}
	if b.Km > 0 {
		far, ok := least(at, b.All(), func(a, b api.Position) (float64, bool) {
			if a.Geo == nil || b.Geo == nil {
				return 0, false
			}
			return a.Geo.Kilometres(*b.Geo), true
		})
		if !ok {
			return ""
		}
		return fmt.Sprintf("geo %.0f km of %g to %s", b.Km-far, b.Km, b.To)
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	rtt, ok := b.Measured[cand.ID]
	if !ok {
		far, known := least(at, b.All(), func(a, b api.Position) (float64, bool) {
			if a.Coord == nil || b.Coord == nil {
				return 0, false
			}
			return vivaldi.Distance(*a.Coord, *b.Coord).Seconds(), true
		})
		if !known {
			return ""
		}
		rtt = time.Duration(far * float64(time.Second))
	}
	return fmt.Sprintf("latency %.1f ms of %g to %s", ms(b.RTT-rtt), ms(b.RTT), b.To)
}

// least is the distance to the nearest of some points, as far as it is known.
func least(at api.Position, points []api.Position, far func(a, b api.Position) (float64, bool)) (best float64, ok bool) {
	for _, p := range points {
		if at.Node != "" && p.Node == at.Node {
			return 0, true
		}
		if d, known := far(at, p); known && (!ok || d < best) {
			best, ok = d, true
		}
	}
	return best, ok
}
