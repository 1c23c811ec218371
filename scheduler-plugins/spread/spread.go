// Package spread keeps the instances of a service apart: it takes the candidate
// with the fewest of them, and among those the one with most left free. One
// candidate's end then costs as few instances as can be.
//
//	res := sched.Place(&req, candidates, spread.Plugin{}, seed)
package spread

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

// Name is "spread".
func (Plugin) Name() string { return "spread" }

// Score is minus the number of peers, less up to a half for what is taken, so
// that load decides among equal numbers of peers only.
func (Plugin) Score(req *sched.Request, c *sched.Candidate) float64 {
	cpu, memory := sched.FreeShares(req, c)
	taken := 1 - (cpu+memory)/2
	return -float64(req.Peers[c.ID]) - min(max(taken, 0), 1)/2
}
