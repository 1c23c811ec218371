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

// Score is what Reckon makes of the facts.
func (p Plugin) Score(req *sched.Request, c *sched.Candidate) float64 {
	return p.Reckon(sched.FactsOf(req, c))
}

// Reckon is the share of the candidate that is taken after the placement, the
// mean of processor, memory and the scarcest of what else is asked for; 1 is full.
// What is known of a cluster counts less the older it is.
func (Plugin) Reckon(f sched.Facts) float64 {
	taken := 1 - (f.CPU+f.Memory)/2
	if f.Rest < 1 {
		taken = 1 - (f.CPU+f.Memory+f.Rest)/3
	}
	if taken > 0 {
		taken *= f.Fresh
	}
	return taken
}
