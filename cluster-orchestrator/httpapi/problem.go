package httpapi

import "github.com/treeline-edge/treeline/internal/problem"

// problemOf returns the answer to an error.
func problemOf(err error) *problem.Problem { return problem.Of(err, "the cluster's log") }
