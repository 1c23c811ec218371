package dataplane

import (
	"net/netip"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Turns assigns turns to backends: each as often as its weight, in the least number of turns,
// and spread as evenly as weights allow (smooth weighted round robin, as in nginx). start
// selects the first.
func Turns(backends []plane.Backend, start int) []netip.Addr {
	if len(backends) == 0 {
		return nil
	}
	sum, common := 0, 0
	for _, b := range backends {
		sum, common = sum+b.Weight, gcd(b.Weight, common)
	}
	out := make([]netip.Addr, 0, sum/common)
	current := make([]int, len(backends))
	for range sum / common {
		best := start % len(backends)
		for i := range backends {
			current[i] += backends[i].Weight
		}
		for n := range backends {
			if i := (start + n) % len(backends); current[i] > current[best] {
				best = i
			}
		}
		current[best] -= sum
		out = append(out, backends[best].Address)
	}
	return out
}

func gcd(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
