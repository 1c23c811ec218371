package uplink

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Offer is how much of the cluster its operator lets the root use and know.
type Offer struct {
	// Share is the part of the nodes' capacity that the root may use, above 0 to 1;
	// 0 means 1. What it sends beyond that is handed back. Devices are not counted, nor,
	// where an urgent instance takes their part, those that were told to make way.
	Share float64
	// Detail is how much the root is told: DetailFull, DetailSlots or DetailSums;
	// empty means full.
	Detail string
	// Round makes amounts coarser: multiples of this part of a mean node's capacity,
	// below 1. Amounts that rule out the cluster are rounded up: what does not fit is handed
	// back. Above 0 the hull is of whole degrees, too.
	Round float64
}

// The values of Offer.Detail. The root never learns of a single node.
const (
	DetailFull  = "full"  // sums and spread, the largest room of each kind of node, and where they are
	DetailSlots = "slots" // not where they are, but by the names of areas
	DetailSums  = "sums"  // sums, the largest of all, and which runtimes and processors there are
)

// Part returns Share with its default, in (0, 1].
func (o Offer) Part() float64 {
	if o.Share <= 0 || o.Share > 1 {
		return 1
	}
	return o.Share
}

// round rounds amounts: up those that rule out the cluster, and the capacity, so that no
// more is free than there is; down those that only rank it.
func (o Offer) round(a *api.Aggregate, in Supply) {
	unit := api.Resources{}
	if a.Nodes > 0 {
		p, by := parts(in.Capacity), min(o.Round, 1)/float64(in.Nodes)
		for i := range p {
			p[i] = int64(float64(p[i]) * by)
		}
		unit = resources(p)
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
