package main

import (
	"fmt"
	"time"

	"github.com/treeline-edge/treeline/testbed/sim"
)

// simSeeds measures the simulator, one seed after the other on one core.
func simSeeds(r *run) error {
	var seeds, steps series
	for i := range r.n {
		w := watch("")
		began := time.Now()
		res := sim.Run(uint64(i+1), sim.Options{})
		took := time.Since(began)
		if res.Violation != nil {
			return fmt.Errorf("seed %d: %v", res.Seed, res.Violation)
		}
		bad := w.disturbed()
		seeds.add(1/took.Seconds(), bad)
		steps.add(float64(res.Steps)/took.Seconds(), bad)
	}
	r.emit(seeds.record("sim.seeds", "1/s").noting("each seed is one life of three tiers, of some minutes, with all faults and all invariants"))
	r.emit(steps.record("sim.steps", "1/s"))
	return nil
}
