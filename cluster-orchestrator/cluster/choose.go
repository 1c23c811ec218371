package cluster

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// find is the node that the built-in plugin gives an instance to, if there is
// one, and the request that led there.
func (c *Core) find(in *instance, avoid ...string) (req sched.Request, choice sched.Choice, ok bool) {
	avoid = append(avoid, in.avoid...)
	if in.plain() {
		req = c.requestOf(in.placing(), avoid...)
		if best, found, told := c.fromShortlist(in, &req); told {
			return req, best, found
		}
	}
	p := in.placing()
	p.late = c.late(in)
	return c.findFor(p, in.seed(), avoid...)
}

// findFor is find for anything. What cannot be near to all that want it near comes
// near to one of them, or, when its search is over, to where its bounds are broken
// least. Where it fits nowhere the request is the strictest, or, when its search is
// over, the loosest.
func (c *Core) findFor(p placing, seed uint64, avoid ...string) (req sched.Request, choice sched.Choice, ok bool) {
	if req, choice, ok = c.findAt(nearAll, p, seed, avoid...); ok {
		return req, choice, true
	}
	wanted := 0
	for i := range req.Bounds {
		wanted += one(req.Bounds[i].Wanted)
	}
	if wanted > 1 {
		if less, choice, ok := c.findAt(nearOne, p, seed, avoid...); ok {
			return less, choice, true
		}
	}
	if !p.late || req.SearchTime() == 0 {
		return req, sched.Choice{}, false
	}
	req, ok = req.Relax(!p.linkedAway(), func(r *sched.Request) (found bool) {
		choice, found = c.best(r, seed)
		return found
	})
	return req, choice, ok
}

// linkedAway reports whether an instance has connectivity to a service that is also in
// another cluster. The root may find a place there that keeps it, unless it has said
// that it searched for as long as it may.
func (p placing) linkedAway() bool {
	return !p.told && slices.ContainsFunc(p.demand.links, func(l sched.Link) bool {
		return l.Way && slices.ContainsFunc(p.targets, func(t api.Target) bool {
			return len(t.Positions) > 0 && t.Service != "" && l.Names(p.id.Service(), t.Service)
		})
	})
}

// searchTime returns for how long this cluster searches for a place that keeps all bounds
// of a request, 0 for not at all: nothing binds, or the root may search elsewhere.
func (p placing) searchTime(req *sched.Request) time.Duration {
	if !p.linkedAway() {
		return req.SearchTime()
	}
	wanted := *req
	wanted.Bounds = slices.DeleteFunc(slices.Clone(req.Bounds), func(b sched.Bound) bool { return !b.Wanted })
	return wanted.SearchTime()
}

func (c *Core) findAt(near nearness, p placing, seed uint64, avoid ...string) (sched.Request, sched.Choice, bool) {
	p.near = near
	req := c.requestOf(p, avoid...)
	choice, ok := c.best(&req, seed)
	return req, choice, ok
}

// best is the node that the request goes to, if there is one.
func (c *Core) best(req *sched.Request, seed uint64) (sched.Choice, bool) {
	avoid := req.Avoid
	for {
		choice, ok := c.table.Best(req, c.cfg.Plugin, seed)
		if !ok || c.together(req, choice.ID) {
			req.Avoid = avoid
			return choice, ok
		}
		req.Avoid = append(slices.Clip(req.Avoid), choice.ID)
	}
}

// rank is all nodes, those first that the request may go to.
func (c *Core) rank(req *sched.Request, seed uint64) sched.Result {
	res := c.table.Place(req, c.cfg.Plugin, seed)
	res.Rejected = c.cappedFor(res.Rejected)
	if len(req.Devices) < 2 {
		return res
	}
	res.Ranked = slices.DeleteFunc(res.Ranked, func(choice sched.Choice) bool {
		if c.together(req, choice.ID) {
			return false
		}
		last := req.Devices[len(req.Devices)-1]
		res.Rejected = append(res.Rejected, api.Rejection{
			Candidate: choice.ID, Constraint: sched.ConstraintDevice + last.Name, Shortfall: 1,
			Need: "a device for each kind", Have: "devices that are of several kinds at once",
		})
		return true
	})
	return res
}

// together reports whether the node has all of the devices for one instance.
func (c *Core) together(req *sched.Request, id string) bool {
	if len(req.Devices) < 2 {
		return true
	}
	n := c.nodes[api.NodeID(id)]
	return n.traits.devices.together(req.Devices, n.devices())
}

// draws are numbers by chance that follow from a seed, for decisions that are to
// be the same when they are replayed.
type draws struct{ seed, n uint64 }

func drawsOf(parts ...any) draws { return draws{seed: sched.SeedOf(parts...)} }

// below is a number from 0 to below n.
func (d *draws) below(n int) int {
	d.n++
	return int(sched.SeedOf(d.seed, d.n) % uint64(n))
}

// reasons are why something fits nowhere, kept while no candidate changes: what asks
// for the same does not fit for the same reasons, and need not be tried.
type reasons struct {
	version uint64 // of the table
	of      map[kind]api.Explanation
}

// kind is what asks for the same.
type kind struct {
	service api.ServiceID
	rev     api.Revision
	placed  bool // on a node, which is not in question
	better  bool // than where it is
	late    bool // its search is over
}

// kindOf is the instance's kind, if what it asks for hangs on nothing that is its own
// but where it is; better says that a bound must be kept with room to spare.
func (c *Core) kindOf(in *instance, better bool) (k kind, ok bool) {
	return kind{in.id().Service(), in.Want.SpecRev, in.Node != "", better, c.late(in)}, len(in.avoid)+len(in.Want.Targets) == 0
}

// hopeless is why an instance that is nowhere fits nowhere, where that was found out
// and nothing has changed since.
func (c *Core) hopeless(in *instance) (why api.Explanation, known bool) {
	k, _ := c.kindOf(in, false)
	if !in.likeSiblings() || c.reasons.version != c.version {
		return why, false
	}
	why, known = c.reasons.of[k]
	return why, known
}

// explanation says why the instance fits nowhere, without the nodes' names: it is
// for the root, and it is kept, so it must not grow with the cluster.
func (c *Core) explanation(in *instance, req *sched.Request, better bool) api.Explanation {
	k, same := c.kindOf(in, better)
	if r := &c.reasons; r.of == nil || r.version != c.version {
		*r = reasons{c.version, map[kind]api.Explanation{}}
	}
	if why, known := c.reasons.of[k]; same && known {
		return why
	}
	why := sched.Veil(sched.Explain(c.rank(req, in.seed())))
	if same {
		c.reasons.of[k] = why
	}
	return why
}
