package ebpf

import "github.com/treeline-edge/treeline/netmanager/overlay/plane"

// turns lays backends out on a ring so that each has its weight's share of it
// and its places lie as far apart as can be (smooth weighted round robin).
func turns(backends []plane.Backend) []uint32 {
	step := 0
	for _, b := range backends {
		step = gcd(step, b.Weight)
	}
	left, sum := make([]int, len(backends)), 0
	for _, b := range backends {
		if b.Weight > 0 {
			sum += b.Weight / step
		}
	}
	ring := make([]uint32, 0, sum)
	for range sum {
		best := -1
		for i, b := range backends {
			if b.Weight <= 0 {
				continue
			}
			left[i] += b.Weight / step
			if best < 0 || left[i] > left[best] {
				best = i
			}
		}
		left[best] -= sum
		ring = append(ring, be32(backends[best].Address))
	}
	return ring
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
