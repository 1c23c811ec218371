package sched

import (
	"fmt"
	"hash/fnv"
)

// SeedOf derives a seed from values that identify a decision, such as an instance and its
// epoch. It separates its arguments: ("ab", "c") and ("a", "bc") differ.
func SeedOf(parts ...any) uint64 {
	h := fnv.New64a()
	for _, p := range parts {
		_, _ = fmt.Fprintf(h, "%v\x00", p)
	}
	return mix(h.Sum64())
}

// tiebreakOf returns a candidate's random number for a seed. It decides between equal scores.
func tiebreakOf(seed uint64, id string) uint64 { return mix(tiebreakBase(id) ^ seed) }

// tiebreakBase returns the part of a candidate's random number that does not depend on the seed.
func tiebreakBase(id string) uint64 {
	const offset, prime = 14695981039346656037, 1099511628211 // FNV-1a, without allocating
	x := uint64(offset)
	for i := range len(id) {
		x = (x ^ uint64(id[i])) * prime
	}
	return x
}

// mix is the finalizer of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9e3779b97f4a7c15
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}
