package sched

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// order is how an explanation lists constraints: as the filters run.
var order = []string{
	ConstraintOut, ConstraintAvoid, ConstraintCluster, ConstraintNode, ConstraintPrivileged,
	ConstraintVirtualization, ConstraintArch, ConstraintNetwork, ConstraintPort, ConstraintVCPUs, ConstraintMemory, Fits,
}

// Explain sums a result up: how many candidates each constraint ruled out, in
// the filters' order, what the best of them had, and the nearest miss of all.
// Counts sum to Considered; candidates that fit count under Fits. It names
// candidates: pass it through Veil before it goes to who may not see them.
func Explain(res Result) api.Explanation {
	ex := api.Explanation{
		Considered: len(res.Ranked) + len(res.Rejected),
		Candidates: res.Rejected,
	}
	counts := make([]int, len(order))
	best := make([]*api.Rejection, len(order))
	counts[len(order)-1] = len(res.Ranked)
	for i := range res.Rejected {
		r := &res.Rejected[i]
		k := max(slices.Index(order, r.Constraint), 0)
		counts[k]++
		if best[k] == nil || nearer(r, best[k]) {
			best[k] = r
		}
	}
	var nearest *api.Rejection
	for k, name := range order {
		if counts[k] == 0 {
			continue
		}
		ex.Causes = append(ex.Causes, api.Cause{Constraint: name, Count: counts[k], Detail: detail(best[k])})
		// At an equal shortfall the later filter is nearer: more has been passed.
		if best[k] != nil && (nearest == nil || best[k].Shortfall <= nearest.Shortfall) {
			nearest = best[k]
		}
	}
	if nearest != nil {
		n := *nearest
		ex.Nearest = &n
	}
	return ex
}

// Veil takes the candidates' names out of an explanation, for a level above or
// an asker who may not see them. A detail that consists of a name goes too.
func Veil(ex api.Explanation) api.Explanation {
	ex.Candidates = nil
	ex.Causes = slices.Clone(ex.Causes)
	for i := range ex.Causes {
		if c := ex.Causes[i].Constraint; c == ConstraintNode || c == ConstraintCluster {
			ex.Causes[i].Detail = ""
		}
	}
	if ex.Nearest != nil {
		n := *ex.Nearest
		n.Candidate = ""
		if n.Constraint == ConstraintNode || n.Constraint == ConstraintCluster {
			n.Have = ""
		}
		ex.Nearest = &n
	}
	return ex
}

func nearer(a, b *api.Rejection) bool {
	if a.Shortfall != b.Shortfall {
		return a.Shortfall < b.Shortfall
	}
	return a.Candidate < b.Candidate // whatever the order that they came in
}

func detail(r *api.Rejection) string {
	switch {
	case r == nil:
		return ""
	case r.Constraint == ConstraintVCPUs || r.Constraint == ConstraintMemory:
		return "need " + r.Need + ", best free " + r.Have
	case r.Constraint == ConstraintOut || r.Constraint == ConstraintAvoid:
		return r.Have
	}
	return "need " + r.Need + ", have " + r.Have
}
