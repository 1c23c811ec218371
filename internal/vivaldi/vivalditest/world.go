// Package vivalditest has a model with known round trips, to verify estimates: cities on a sphere,
// nodes in and around them, each with the latency of its access link, and measurements with
// positive noise.
//
//	w := vivalditest.New(500, seed)
//	coords := w.Converge(500, 16, 200)
package vivalditest

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// World is a set of places. The zero World is empty.
type World struct {
	Geo   []api.Geo
	mile  []float64 // ms that each node's access link adds to a round trip
	rng   *rand.Rand
	towns []api.Geo
}

// New makes a world of n nodes with round trips of 10 to about 250 ms.
func New(n int, seed uint64) *World {
	w := &World{rng: rand.New(rand.NewPCG(seed, seed))}
	for range max(n/12, 1) {
		w.towns = append(w.towns, api.Geo{Lat: 15 + w.rng.Float64()*40, Lon: -20 + w.rng.Float64()*60})
	}
	for range n {
		w.Add()
	}
	return w
}

// Add adds a place in or around one of the cities and returns its number.
func (w *World) Add() int {
	town := w.towns[w.rng.IntN(len(w.towns))]
	g := api.Geo{Lat: town.Lat + w.rng.NormFloat64()*0.4, Lon: town.Lon + w.rng.NormFloat64()*0.4}
	g.Lon = math.Remainder(g.Lon, 360)
	w.Geo = append(w.Geo, g)
	w.mile = append(w.mile, 5+w.rng.ExpFloat64()*1.5)
	return len(w.Geo) - 1
}

// RTT returns the true round trip between two places: their access links, and 3.8 times the time in
// fibre along the great circle.
func (w *World) RTT(a, b int) time.Duration {
	ms := w.mile[a] + w.mile[b] + w.Geo[a].Kilometres(w.Geo[b])/100*3.8
	return time.Duration(ms * float64(time.Millisecond))
}

// Measure returns the least of three measurements, each above the true round trip.
func (w *World) Measure(a, b int) time.Duration {
	noise := 1.0
	for range 3 {
		noise = min(noise, math.Abs(w.rng.NormFloat64())*0.1)
	}
	return time.Duration(float64(w.RTT(a, b)) * (1 + noise))
}

// Converge returns the coordinates of the first n nodes after a number of rounds. In each round
// every node measures one of its peers, of which half are random and half the nearest, as in the
// Vivaldi paper (§5.2).
func (w *World) Converge(n, peers, rounds int) []api.Coordinate {
	coords := make([]api.Coordinate, n)
	given := make([][]int, n)
	for i := range coords {
		coords[i] = vivaldi.New()
		all := w.rng.Perm(n)
		given[i] = append(given[i], all[:peers/2]...)
		away := make([]time.Duration, n)
		for j := range away {
			away[j] = w.RTT(i, j)
		}
		slices.SortFunc(all, func(a, b int) int { return cmp.Compare(away[a], away[b]) })
		given[i] = append(given[i], all[:peers-peers/2]...)
	}
	for r := range rounds {
		for i := range coords {
			if j := given[i][r%peers]; j != i {
				coords[i] = vivaldi.Update(coords[i], coords[j], w.Measure(i, j), uint64(r*n+i))
			}
		}
	}
	return coords
}

// Probes returns n different random numbers in [0, of).
func (w *World) Probes(n, of int) []int { return w.rng.Perm(of)[:n] }
