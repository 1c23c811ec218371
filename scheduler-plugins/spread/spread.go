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

// Score is what Reckon makes of the facts.
func (p Plugin) Score(req *sched.Request, c *sched.Candidate) float64 {
	return p.Reckon(sched.FactsOf(req, c))
}

// Reckon is minus the number of peers, less up to a half for what is taken, so
// that load decides among equal numbers of peers only. What is known of a cluster
// counts less the older it is.
func (Plugin) Reckon(f sched.Facts) float64 {
	free := min(max((f.CPU+f.Memory)/2, 0), 1) * f.Fresh
	return -float64(f.Peers()) - (1-free)/2
}

// Monotone says that what has more to spare and fewer peers never scores less.
func (Plugin) Monotone() (byPeers bool) { return true }
