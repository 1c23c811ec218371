package sched_test

import (
	"fmt"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/scheduler-plugins/rom"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Place ranks the nodes that fit, and returns for the others the constraint that excludes them.
func ExamplePlace() {
	node := func(id, arch string, milliCPU, memoryMB int64) sched.Candidate {
		free := api.Resources{MilliCPU: milliCPU, MemoryMB: memoryMB}
		return sched.Candidate{
			ID: id, Level: sched.Nodes, Capacity: api.Resources{MilliCPU: 4000, MemoryMB: 4096}, Free: free,
			Slots: []sched.Slot{{Runtimes: []string{"container"}, Arch: arch, Free: free, Largest: free}},
		}
	}
	request := sched.Request{
		ID: "acme/shop.prod.web.v1#0", Virtualization: "container", Arch: []string{"amd64"},
		Needs: api.Resources{MilliCPU: 500, MemoryMB: 512},
	}
	const seed = 1
	result := sched.Place(&request, []sched.Candidate{
		node("n1", "amd64", 1000, 1024),
		node("n2", "amd64", 3000, 3072),
		node("n3", "amd64", 4000, 256),
		node("n4", "arm64", 4000, 4096),
	}, rom.Plugin{}, seed)
	for _, choice := range result.Ranked {
		fmt.Println("fits:", choice.ID)
	}
	for _, r := range result.Rejected {
		fmt.Printf("%s: %s, needs %s, has %s\n", r.Candidate, r.Constraint, r.Need, r.Have)
	}
	// Output:
	// fits: n2
	// fits: n1
	// n3: memory, needs 512 MiB, has 256 MiB
	// n4: arch, needs amd64, has arm64
}
