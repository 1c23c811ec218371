package cluster

import (
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Plan says where instances would go that come one after the other, if nothing
// else changed. It reserves nothing.
func (c *Core) Plan(r api.ClusterPlanRequest) api.ClusterPlan {
	before := map[string]sched.Candidate{}
	var held api.Resources
	var undo []func()
	defer func() {
		for _, u := range undo {
			u()
		}
		for _, cand := range before {
			c.table.Put(cand)
		}
	}()
	out := api.ClusterPlan{Instances: make([]api.InstancePlan, 0, len(r.Instances))}
	for i := range r.Instances {
		q := &r.Instances[i]
		d := demandOf(q.Instance, &q.Spec)
		in := &instance{demand: d}
		in.Want = api.Assignment{Instance: q.Instance, Spec: q.Spec, Targets: q.Targets}
		c.used = c.used.Plus(held) // what was planned before counts
		why := c.overShare(in)
		c.used = c.used.Minus(held)
		if why != nil {
			out.Instances = append(out.Instances, waits(q.Instance, *why))
			continue
		}
		p := placing{id: q.Instance, demand: &d, targets: q.Targets}
		seed := sched.SeedOf(q.Instance, 0)
		req, best, ok := c.findFor(p, seed)
		if !ok {
			out.Instances = append(out.Instances, waits(q.Instance, sched.Explain(c.rank(&req, seed))))
			continue
		}
		cand := *c.table.Get(best.ID)
		out.Instances = append(out.Instances, api.InstancePlan{
			ID: q.Instance, Action: "place", Cluster: c.cfg.ID, Node: api.NodeID(best.ID), Score: best.Score,
			Headroom: headroom(&req, &cand),
		})
		if _, ok := before[best.ID]; !ok {
			before[best.ID] = cand
		}
		held = held.Plus(d.claim.Room)
		c.table.Put(less(cand, &d))
		undo = append(undo, c.pretend(q.Instance.Service(), best.ID))
	}
	return out
}

func waits(id api.InstanceID, why api.Explanation) api.InstancePlan {
	return api.InstancePlan{ID: id, Action: "wait", Why: &why}
}

// less is a candidate with an instance on it.
func less(cand sched.Candidate, d *demand) sched.Candidate {
	r := cand.Rooms[0]
	cand.Free = cand.Free.Minus(d.claim.Room)
	r.Free, r.Largest = cand.Free, cand.Free
	if len(d.claim.Devices) > 0 {
		r.Devices = maps.Clone(r.Devices)
		for _, dev := range d.claim.Devices {
			r.Devices[dev.Name] -= dev.Count
		}
	}
	cand.Rooms = []sched.Room{r}
	if len(d.ports) > 0 {
		ports := map[sched.Port]int{}
		maps.Copy(ports, cand.Ports)
		for _, p := range d.ports {
			ports[p]++
		}
		cand.Ports = ports
	}
	cand.Load++
	return cand
}

// pretend counts an instance of a service as being on a node, for those that are
// planned after it, until it is undone.
func (c *Core) pretend(id api.ServiceID, node string) (undo func()) {
	s, fresh := c.services[id], false
	if s == nil {
		s, fresh = c.newService(id), true
	}
	s.peers[node]++
	return func() {
		if s.peers[node]--; s.peers[node] == 0 {
			delete(s.peers, node)
		}
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
	at := api.Position{Geo: cand.Geo, Coord: cand.Coord}
	if b.Km > 0 {
		far, ok := least(at, b.Points, func(a, b api.Position) (float64, bool) {
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
		far, known := least(at, b.Points, func(a, b api.Position) (float64, bool) {
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
		if d, known := far(at, p); known && (!ok || d < best) {
			best, ok = d, true
		}
	}
	return best, ok
}
