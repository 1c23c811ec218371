package sched_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/plugintest"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// A cluster that has a node for a request is never excluded by its aggregate, however coarse
// that is.
func TestClustersThatMayHoldItPass(t *testing.T) {
	tried := 0
	rapid.Check(t, func(t *rapid.T) {
		req := plugintest.Requests().Draw(t, "request")
		req.Clusters = nil
		grid := rapid.SampledFrom([]float64{0, 1, 10}).Draw(t, "grid")
		coarse := rapid.Bool().Draw(t, "coarse")
		var nodes []sched.Candidate
		for _, c := range plugintest.Candidates().Draw(t, "nodes") {
			if c.Level == sched.Nodes && c.Out == "" {
				nodes = append(nodes, c)
			}
		}
		if len(sched.Place(&req, nodes, rom.Plugin{}, 1).Ranked) == 0 {
			return
		}
		tried++
		whole := cluster(nodes, grid, coarse)
		at := req
		at.Domains, at.Avoid, at.VolumeAt, at.VolumeIn, at.VolumeKeys, at.TogetherAt = nil, nil, "", nil, "", "" // these name nodes
		if res := sched.Place(&at, []sched.Candidate{whole}, rom.Plugin{}, 1); len(res.Ranked) == 0 {
			t.Fatalf("a node of it fits, and it is ruled out: %+v", res.Rejected)
		}
	})
	if tried == 0 {
		t.Log("no node fitted in this run")
	}
}

// cluster returns the candidate of a cluster with the given nodes: one Slot per node, or one
// with few details.
func cluster(nodes []sched.Candidate, grid float64, coarse bool) sched.Candidate {
	c := sched.Candidate{ID: "whole", Level: sched.Clusters, Nodes: len(nodes)}
	var locations []api.Geo
	untold := sched.Slot{
		Runtimes: []string{sched.Unreported}, Arch: sched.Unreported, Areas: []string{sched.Unreported}, Addons: []string{sched.Unreported},
		Privileged: true, Network: true, Devices: map[string]int{sched.Unreported: 1},
	}
	for _, n := range nodes {
		c.Capacity, c.Free = c.Capacity.Plus(n.Capacity), c.Free.Plus(n.Free.Max(api.Resources{}))
		for _, r := range n.Slots {
			r.Largest = r.Largest.Min(n.Free).Min(r.Free).Max(api.Resources{})
			r.Free = r.Largest
			untold.Free, untold.Largest = untold.Free.Plus(r.Free), untold.Largest.Max(r.Largest)
			untold.Features = append(untold.Features, r.Features...)
			c.Slots = append(c.Slots, r)
		}
		if n.Geo == nil {
			c.Unplaced++
		} else {
			locations = append(locations, *n.Geo)
		}
		if !vivaldi.Valid(n.Coord) {
			continue
		}
		if c.Coord == nil {
			c.Coord = n.Coord
		}
		c.Radius = max(c.Radius, vivaldi.Distance(*c.Coord, *n.Coord))
	}
	if coarse {
		c.Slots = []sched.Slot{untold}
	}
	c.Hull = sched.Hull(locations, grid)
	return c
}
