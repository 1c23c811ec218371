// Package rom is Resource-Only Match, Algorithm 1 of the Oakestra paper: greedy
// by free capacity. It takes the candidate with the largest share left free
// after the placement, reservations included. Which candidates fit at all is
// package sched's to say.
//
//	res := sched.Place(&req, candidates, rom.Plugin{}, seed)
package rom

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

// Name is "rom".
func (Plugin) Name() string { return "rom" }

// Score is what Reckon makes of the facts.
func (p Plugin) Score(req *sched.Request, c *sched.Candidate) float64 {
	return p.Reckon(sched.FactsOf(req, c))
}

// Reckon is the share of the candidate that stays free, at most 1. The scarcest
// of processor, memory and whatever else is asked for counts three times: much of
// one is of no use to those who come later when another is gone. What is known
// of a cluster counts less the older it is.
func (Plugin) Reckon(f sched.Facts) float64 {
	score := (3*min(f.CPU, f.Memory, f.Rest) + max(f.CPU, f.Memory)) / 4
	if score > 0 {
		score *= f.Fresh
	}
	return score
}

// Monotone says that what has more to spare never scores less, whatever its peers.
func (Plugin) Monotone() (byPeers bool) { return false }
