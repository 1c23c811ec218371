// Package ldp is Latency and Distance Aware Placement, Algorithm 2 of the Oakestra paper.
// Package sched finds the candidates that meet a request's bounds on distance and round trip,
// by great circles and by the Vivaldi coordinates of nodes, services and users. ldp prefers
// candidates with a margin, because an estimate that equals its bound is too low half of the
// time.
//
//	res := sched.Place(&req, candidates, ldp.Plugin{}, seed)
package ldp

import "github.com/treeline-edge/treeline/scheduler-plugins/sched"

// Plugin is the algorithm. It has no settings.
type Plugin struct{}

func (Plugin) Name() string { return "ldp" }

// enough is the margin above which only free capacity counts.
const enough = 0.5

// Score returns rom's score for a request without bounds on distance or round trip. Otherwise
// it returns the margin as a share of enough, at most 1, plus a fifth of the free share that
// rom scores. It decreases with the age of the information about a cluster.
func (Plugin) Score(f sched.Facts) float64 {
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

// Monotone implements sched.Monotone. The score does not depend on peers.
func (Plugin) Monotone() (byPeers bool) { return false }
