// Package ldp is Latency and Distance Aware Placement, Algorithm 2 of the Oakestra
// paper. Which candidates keep a request's distances and round trips is common to
// all plugins and package sched's to say, from great circles and the Vivaldi
// coordinates of nodes, services and users. Of those, ldp takes one that keeps
// them with room to spare: an estimate at the edge of its bound is one that the
// truth breaks half of the time.
//
//	res := sched.Place(&req, candidates, ldp.Plugin{}, seed)
package ldp

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

// Name is "ldp".
func (Plugin) Name() string { return "ldp" }

// Score is what Reckon makes of the facts.
func (p Plugin) Score(req *sched.Request, c *sched.Candidate) float64 {
	return p.Reckon(sched.FactsOf(req, c))
}

// enough is the margin beyond which being nearer is worth nothing more: there,
// what is free decides.
const enough = 0.5

// Reckon is rom's score for a request that asks for no distance or round trip.
// For others up to 1 for the margin comes first, as far as it is not enough, and
// a fifth of rom's score after it.
func (Plugin) Reckon(f sched.Facts) float64 {
	free := (3*min(f.CPU, f.Memory, f.Rest) + max(f.CPU, f.Memory)) / 4
	if !f.Bounded {
		if free > 0 {
			free *= f.Fresh
		}
		return free
	}
	score := min(f.Margin/enough, 1) + free/5
	if score > 0 {
		score *= f.Fresh
	}
	return score
}

// Monotone says that what has more to spare never scores less, whatever its peers.
func (Plugin) Monotone() (byPeers bool) { return false }
