package sched

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
)

// Two kinds of bounds may be violated if an instance would otherwise fit nowhere: those of
// its connectivity, and those of other services' links to it. A core first searches for a
// place that meets them, for Request.SearchTime. Then Request.Relax finds the place that
// violates them least. Both tiers use this rule.

// maxStretch is the largest factor by which bounds are widened. After that they are dropped.
const maxStretch = 256

// SearchTime returns how long to search for a place that meets all bounds: the minimum over
// the bounds. It is 0 if none of them may be violated.
func (r *Request) SearchTime() time.Duration {
	least := r.Search
	for i := range r.Bounds {
		least = shorterNonZero(least, r.Bounds[i].Search)
	}
	return least
}

// SearchFor adds the search time of a link that cannot be measured at this level.
func (r *Request) SearchFor(d time.Duration) { r.Search = shorterNonZero(r.Search, d) }

// shorterNonZero returns the smaller of two durations. 0 means none.
func shorterNonZero(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// Relax returns the strictest relaxed form of a request that try accepts. It first drops the
// bounds of other services' links. With own, it then doubles the bounds of the instance's own
// connectivity repeatedly, and finally drops them. If try accepts none, Relax returns the last
// form and false.
func (r Request) Relax(own bool, try func(*Request) bool) (Request, bool) {
	relaxed := r.Loosest(false)
	if try(&relaxed) {
		return relaxed, true
	}
	if !own || !slices.ContainsFunc(relaxed.Bounds, func(b Bound) bool { return b.Search > 0 }) {
		return relaxed, false
	}
	for by := 2; by <= maxStretch; by *= 2 {
		if wider := relaxed.widened(by); try(&wider) {
			return wider, true
		}
	}
	relaxed = relaxed.Loosest(true)
	return relaxed, try(&relaxed)
}

// Loosest returns the last form that Relax tries.
func (r Request) Loosest(own bool) Request {
	r.Bounds = slices.DeleteFunc(slices.Clone(r.Bounds), func(b Bound) bool { return b.Inbound || own && b.Search > 0 })
	return r
}

// widened returns the request with the bounds of its connectivity multiplied by a factor.
func (r Request) widened(by int) Request {
	r.Bounds = slices.Clone(r.Bounds)
	for i := range r.Bounds {
		if b := &r.Bounds[i]; b.Search > 0 && !b.Inbound {
			b.RTT, b.Km = b.RTT*time.Duration(by), b.Km*float64(by)
		}
	}
	return r
}

// SearchText describes a search that continues until a time, for people.
func SearchText(until time.Time) string {
	return "searching until " + until.UTC().Format("15:04:05 UTC") + " for a place that keeps the links between services; then the nearest place is taken"
}

// AnnotateSearch adds the end of the search to the rejections of res that exist only because of
// the search: rejections by distance that the loosest form of the request does not have.
func AnnotateSearch(res, loosest Result, until time.Time) Result {
	far := func(r *api.Rejection) bool { return r.Constraint == ConstraintLatency || r.Constraint == ConstraintGeo }
	stays := map[string]bool{}
	for i := range loosest.Rejected {
		stays[loosest.Rejected[i].Candidate] = far(&loosest.Rejected[i])
	}
	res.Rejected = slices.Clone(res.Rejected)
	for i := range res.Rejected {
		if r := &res.Rejected[i]; far(r) && !stays[r.Candidate] {
			r.Have += "; searching until " + until.UTC().Format("15:04:05 UTC")
		}
	}
	return res
}
