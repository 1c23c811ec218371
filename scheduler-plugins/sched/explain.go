package sched

import (
	"cmp"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// constraintOrder lists the constraints as the filters run.
var constraintOrder = append(slices.Concat(constraintsOf[:]...), Fits)

// constraintIndex returns a constraint's index in order.
func constraintIndex(constraint string) int {
	if strings.HasPrefix(constraint, ConstraintDevice) {
		constraint = ConstraintDevice
	}
	return slices.Index(constraintOrder, constraint)
}

// Explain summarises a result: how many candidates each constraint excluded, in the order of
// the filters, what the best of them had, and the nearest miss. The counts add up to
// Considered; candidates that fit count under Fits. The explanation names candidates; use
// Redact for readers who may not see them.
func Explain(res Result) api.Explanation {
	ex := api.Explanation{
		Considered: len(res.Ranked) + len(res.Rejected),
		Candidates: res.Rejected,
	}
	type cause struct {
		api.Cause
		best *api.Rejection
	}
	var causes []cause
	for i := range res.Rejected {
		r := &res.Rejected[i]
		k := slices.IndexFunc(causes, func(c cause) bool { return c.Constraint == r.Constraint })
		if k < 0 {
			k = len(causes)
			causes = append(causes, cause{api.Cause{Constraint: r.Constraint}, r})
		}
		causes[k].Count++
		if nearer(r, causes[k].best) {
			causes[k].best = r
		}
	}
	if n := len(res.Ranked); n > 0 {
		causes = append(causes, cause{api.Cause{Constraint: Fits, Count: n}, nil})
	}
	slices.SortFunc(causes, func(a, b cause) int {
		return cmp.Or(cmp.Compare(constraintIndex(a.Constraint), constraintIndex(b.Constraint)), cmp.Compare(a.Constraint, b.Constraint)) // kinds of devices last
	})
	var nearest *api.Rejection
	for _, c := range causes {
		c.Detail = detail(c.best)
		ex.Causes = append(ex.Causes, c.Cause)
		// At an equal shortfall the later filter is nearer: the candidate passed more filters.
		if c.best != nil && (nearest == nil || c.best.Shortfall <= nearest.Shortfall) {
			nearest = c.best
		}
	}
	if nearest != nil {
		ex.Nearest = new(*nearest)
	}
	return ex
}

// Redact removes the candidates' names and labels from an explanation, for the tier above or
// a user who may not see them.
func Redact(ex api.Explanation) api.Explanation {
	private := []string{ConstraintNode, ConstraintCluster, ConstraintLabels, ConstraintVolume, ConstraintTogether}
	ex.Candidates = nil
	ex.Causes = slices.Clone(ex.Causes)
	for i := range ex.Causes {
		if slices.Contains(private, ex.Causes[i].Constraint) {
			ex.Causes[i].Detail = ""
		}
		if ex.Causes[i].Constraint == ConstraintVolume {
			ex.Causes[i].Detail = "its volume is elsewhere"
		}
	}
	if ex.Nearest != nil {
		n := *ex.Nearest
		n.Candidate = ""
		if slices.Contains(private, n.Constraint) {
			n.Have = ""
		}
		ex.Nearest = &n
	}
	return ex
}

// nearer is a total order, so that the result does not depend on the input's order.
func nearer(a, b *api.Rejection) bool {
	return cmp.Or(cmp.Compare(a.Shortfall, b.Shortfall), cmp.Compare(a.Candidate, b.Candidate)) < 0
}

func detail(r *api.Rejection) string {
	switch {
	case r == nil:
		return ""
	case r.Constraint == ConstraintTrust:
		return "not " + r.Need // Have names the clusters' owners, which not every reader may see
	case r.Constraint == ConstraintOut || r.Constraint == ConstraintAvoid || r.Constraint == ConstraintVolume || r.Constraint == ConstraintTogether:
		return r.Have
	case r.Constraint == ConstraintGeo || r.Constraint == ConstraintLatency:
		if r.Short != "" {
			return "need " + r.Need + ", best " + r.Have
		}
		return "need " + r.Need + ": " + r.Have // the distance is unknown; Have says why
	case r.Short != "":
		return "need " + r.Need + ", best free " + r.Have
	}
	return "need " + r.Need + ", have " + r.Have
}
