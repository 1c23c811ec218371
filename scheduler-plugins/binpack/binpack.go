// Package binpack fills one candidate before the next, so that large slots stay free for
// large requests and idle machines can be switched off.
//
//	res := sched.Place(&req, candidates, binpack.Plugin{}, seed)
package binpack

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

func (Plugin) Name() string { return "binpack" }

// Score returns the share of the candidate that is in use after the placement: the mean of
// processor, memory and, if requested, the scarcest other resource; 1 is full. It decreases
// with the age of the information about a cluster.
func (Plugin) Score(f sched.Facts) float64 {
	taken := 1 - (f.CPU+f.Memory)/2
	if f.Rest < 1 {
		taken = 1 - (f.CPU+f.Memory+f.Rest)/3
	}
	if taken > 0 {
		taken *= f.Fresh
	}
	return taken
}
