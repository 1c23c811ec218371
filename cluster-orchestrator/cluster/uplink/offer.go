package uplink

import (
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Offer is the part of the cluster that its operator lets the root use and see.
type Offer struct {
	// Share is the part of the nodes' capacity that the root may use, in (0, 1]; 0 means 1.
	// Instances beyond it are handed back. Devices do not count, nor do instances that are
	// being preempted while an instance of higher priority takes their share.
	Share float64
	// Detail is DetailFull, DetailSlots or DetailSums; empty means DetailFull.
	Detail string
	// Round is the fraction of a mean node's capacity to whose multiples amounts are rounded,
	// in [0, 1); 0: exact. Amounts by which the root excludes the cluster are rounded up, and
	// instances that then do not fit are handed back. Above 0, the hull has whole degrees.
	Round float64
}

// The values of Offer.Detail. None reports single nodes.
const (
	DetailFull  = "full"  // sums and deviations, the largest slot of each kind of node, and locations
	DetailSlots = "slots" // without locations and the names of areas
	DetailSums  = "sums"  // sums and the largest slot of all
)

// Part returns Share with its default, in (0, 1].
func (o Offer) Part() float64 {
	if o.Share <= 0 || o.Share > 1 {
		return 1
	}
	return o.Share
}

// round rounds up the amounts that can exclude the cluster, and the capacity, so that it is
// not below the free amounts. It rounds down the amounts that only rank the cluster.
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
	round(&a.Mean, roundDown)
	round(&a.StdDev, roundDown)
	for _, r := range []*api.Resources{&a.Capacity, &a.Free, &a.Largest} {
		round(r, roundUp)
	}
	for i := range a.Preemptible {
		round(&a.Preemptible[i].Free, roundUp)
		round(&a.Preemptible[i].Largest, roundUp)
	}
	for i := range a.Slots {
		round(&a.Slots[i].Free, roundUp)
		round(&a.Slots[i].Largest, roundUp)
	}
	if a.Latency != nil {
		a.Latency.Radius = (a.Latency.Radius + 5*time.Millisecond).Truncate(5 * time.Millisecond)
	}
}

func roundDown(n, unit int64) int64 { return n / unit * unit }

func roundUp(n, unit int64) int64 { return roundDown(n+unit-1, unit) }
