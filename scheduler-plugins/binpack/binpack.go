// Package binpack fills one candidate before it begins the next, so that large
// places stay whole for large requests and idle machines may be switched off.
//
//	res := sched.Place(&req, candidates, binpack.Plugin{}, seed)
package binpack

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

// Name is "binpack".
func (Plugin) Name() string { return "binpack" }

// Score is the share of the candidate that is taken after the placement, the
// mean of processor and memory; 1 is full.
func (Plugin) Score(req *sched.Request, c *sched.Candidate) float64 {
	cpu, memory := sched.FreeShares(req, c)
	return 1 - (cpu+memory)/2
}
