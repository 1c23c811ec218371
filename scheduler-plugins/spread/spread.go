// Package spread chooses the candidate with the fewest instances of the service, and among
// equals the one with the most free capacity, so that the failure of one candidate stops few
// instances.
//
//	res := sched.Place(&req, candidates, spread.Plugin{}, seed)
package spread

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

func (Plugin) Name() string { return "spread" }

// Score returns minus the number of peers, minus up to 0.5 for the capacity in use, so that
// load only decides between equal numbers of peers. Free capacity counts less with the age of
// the information about a cluster.
func (Plugin) Score(f sched.Facts) float64 {
	free := min(max((f.CPU+f.Memory)/2, 0), 1) * f.Fresh
	return -float64(f.Peers()) - (1-free)/2
}

// Monotone implements sched.Monotone. The score depends on peers.
func (Plugin) Monotone() (byPeers bool) { return true }
