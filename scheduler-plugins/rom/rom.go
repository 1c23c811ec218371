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

// Score is the share of the candidate that stays free, at most 1. The scarcer
// of processor and memory counts three times: much of one is of no use to those
// who come later when the other is gone.
func (Plugin) Score(req *sched.Request, c *sched.Candidate) float64 {
	cpu, memory := sched.FreeShares(req, c)
	return (3*min(cpu, memory) + max(cpu, memory)) / 4
}
