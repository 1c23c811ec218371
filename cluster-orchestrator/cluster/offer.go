package cluster

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Offer is what the cluster's operator lets the root have, and know.
type Offer struct {
	// Share is the part of the nodes' capacity that the root may use, above 0 to 1;
	// 0 means 1. What it sends beyond that is handed back. Devices are not counted, nor,
	// where an urgent instance takes their part, those that were told to make way.
	Share float64
	// Detail is how much the root is told: DetailFull, DetailSlots or DetailSums;
	// empty means full.
	Detail string
	// Round makes amounts coarser: multiples of this part of a mean node's capacity,
	// below 1. Where the root would else not offer what fits they are rounded up, and
	// what does not fit is handed back. Above 0 the hull is of whole degrees, too.
	Round float64
}

// What the root may be told. It never learns of a single node.
const (
	DetailFull  = "full"  // sums and spread, the largest room of each kind of node, and where they are
	DetailSlots = "slots" // not where they are, but by the names of areas
	DetailSums  = "sums"  // sums, the largest of all, and which runtimes and processors there are
)

func (o Offer) share() float64 {
	if o.Share <= 0 || o.Share > 1 {
		return 1
	}
	return o.Share
}

// offered is the share of capacity that the root may use, and what of that is
// not taken.
func (c *Core) offered() (capacity, free api.Resources) {
	capacity = scaled(c.capacity, c.cfg.Offer.share())
	return capacity, atLeastZero(capacity.Minus(c.used))
}

func scaled(r api.Resources, by float64) api.Resources {
	if by == 1 {
		return r
	}
	part := func(n int64) int64 { return int64(float64(n) * by) }
	return api.Resources{
		MilliCPU: part(r.MilliCPU), MemoryMB: part(r.MemoryMB), StorageMB: part(r.StorageMB),
		InMbit: part(r.InMbit), OutMbit: part(r.OutMbit),
	}
}

// shares reports whether an instance counts against the root's share.
func (c *Core) shares(in *instance) bool { return c.cfg.Offer.share() < 1 && !in.Local }

// overShare says by what an instance of the root's goes beyond its share, or nil.
func (c *Core) overShare(in *instance) *api.Explanation {
	r := c.beyondShare(in)
	if r == nil {
		return nil
	}
	nodes := len(c.nodes)
	return &api.Explanation{
		Considered: nodes, Nearest: r,
		Causes: []api.Cause{{Constraint: r.Constraint, Count: nodes, Detail: "need " + r.Need + ", the root's share has " + r.Have + " left"}},
	}
}

func (c *Core) beyondShare(in *instance) *api.Rejection {
	if !c.shares(in) || in.Reserved != "" {
		return nil
	}
	_, free := c.offered()
	room := sched.Candidate{Level: sched.Nodes, Free: free, Rooms: []sched.Room{{Runtimes: []string{""}, Free: free, Largest: free}}}
	res := sched.Place(&sched.Request{Needs: in.demand.claim.Room}, []sched.Candidate{room}, c.cfg.Plugin, 0)
	if len(res.Rejected) == 0 {
		return nil
	}
	r := res.Rejected[0]
	r.Constraint = ConstraintShare
	return &r
}

// coarse rounds amounts as the operator likes: up what rules the cluster out, and
// the capacity, so that no more is free than there is; down what only ranks it.
func (c *Core) coarse(a *api.Aggregate) {
	unit := api.Resources{}
	if a.Nodes > 0 {
		unit = scaled(c.capacity, min(c.cfg.Offer.Round, 1)/float64(len(c.nodes)))
	}
	if unit == (api.Resources{}) {
		return
	}
	steps := parts(unit)
	round := func(r *api.Resources, to func(n, unit int64) int64) {
		p := parts(*r)
		for i := range p {
			p[i] = to(p[i], max(steps[i], 1))
		}
		*r = resources(p)
	}
	round(&a.Mean, below)
	round(&a.StdDev, below)
	for _, r := range []*api.Resources{&a.Capacity, &a.Free, &a.Largest} {
		round(r, above)
	}
	for i := range a.Yields {
		round(&a.Yields[i].Free, above)
		round(&a.Yields[i].Largest, above)
	}
	for i := range a.Slots {
		round(&a.Slots[i].Free, above)
		round(&a.Slots[i].Largest, above)
	}
	if a.Latency != nil {
		a.Latency.Radius = (a.Latency.Radius + 5*time.Millisecond).Truncate(5 * time.Millisecond)
	}
}

func below(n, unit int64) int64 { return n / unit * unit }

func above(n, unit int64) int64 { return below(n+unit-1, unit) }
