package sched

import "github.com/treeline-edge/treeline/api"

// overhead is what an instance costs beside what it reserves: its shim and a
// little processor. It makes instances that reserve nothing spread as well.
var overhead = api.Resources{MilliCPU: 10, MemoryMB: 12}

// FreeShares is the share of the candidate's processor and of its memory that
// would be free with the request on it, each at most 1 and below 0 where it is
// booked over. They are shares because units must not be mixed. What has no
// capacity has no free share.
func FreeShares(req *Request, c *Candidate) (cpu, memory float64) {
	n := int64(c.Load + 1)
	return part(c.Free.MilliCPU-req.Needs.MilliCPU-n*overhead.MilliCPU, c.Capacity.MilliCPU),
		part(c.Free.MemoryMB-req.Needs.MemoryMB-n*overhead.MemoryMB, c.Capacity.MemoryMB)
}

func part(free, capacity int64) float64 {
	if capacity <= 0 {
		return 0
	}
	return min(float64(free)/float64(capacity), 1)
}
