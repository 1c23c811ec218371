// Package rom is Resource-Only Match, Algorithm 1 of the Oakestra paper. It chooses the
// candidate with the largest share of free capacity after the placement, where reserved
// capacity is not free. Package sched finds the candidates that fit.
//
//	res := sched.Place(&req, candidates, rom.Plugin{}, seed)
package rom

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

func (Plugin) Name() string { return "rom" }

// Score returns the free share of the candidate after the placement, at most 1. The scarcest
// resource counts three times, because free processor time is useless without free memory. It
// decreases with the age of the information about a cluster.
func (Plugin) Score(f sched.Facts) float64 {
	score := (3*min(f.CPU, f.Memory, f.Rest) + max(f.CPU, f.Memory)) / 4
	if score > 0 {
		score *= f.Fresh
	}
	return score
}

// Monotone implements sched.Monotone. The score does not depend on peers.
func (Plugin) Monotone() (byPeers bool) { return false }
