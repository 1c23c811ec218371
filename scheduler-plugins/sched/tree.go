package sched

import (
	"cmp"
	"math"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// tree is a k-d tree of places (Bentley 1975).
type tree struct {
	size  int32   // it has the first size places of Places.all
	order []int32 // indexes in Places.all
	cells []cell  // a cell's left half follows it
}

// cell is a box that contains the places order[from:to].
type cell struct {
	least, limit   [vivaldi.Dimensions]float64 // its corners
	height, adjust float64                     // minimum over its places
	from, to       int32
	right          int32 // index of its right half; 0: a leaf
}

// leaf is the maximum number of places in a leaf.
const leaf = 8

// vec returns the position as a point: in the latency space, or on the sphere.
func (p *position) vec(by int) (v [vivaldi.Dimensions]float64) {
	if by == byRTT {
		return p.latency.vec
	}
	copy(v[:], p.point[:])
	return v
}

func (t *tree) build(p *Places, by int) {
	t.order, t.cells = t.order[:0], t.cells[:0]
	for i := range p.all {
		if k := &p.all[i]; !k.removed && (by == byRTT && k.latency.known || by == byKm && k.located) {
			t.order = append(t.order, int32(i))
		}
	}
	t.size = int32(len(p.all))
	if len(t.order) > 0 {
		t.split(p, by, 0, int32(len(t.order)))
	}
}

// split adds the cell of order[from:to] and its halves.
func (t *tree) split(p *Places, by int, from, to int32) {
	first := &p.all[t.order[from]]
	b := cell{least: first.vec(by), limit: first.vec(by), height: math.Inf(1), adjust: math.Inf(1), from: from, to: to}
	for _, i := range t.order[from:to] {
		k := &p.all[i]
		for d, x := range k.vec(by) {
			b.least[d], b.limit[d] = min(b.least[d], x), max(b.limit[d], x)
		}
		b.height, b.adjust = min(b.height, k.latency.height), min(b.adjust, k.latency.adjust)
	}
	at := len(t.cells)
	t.cells = append(t.cells, b)
	if to-from <= leaf {
		return
	}
	widest := 0
	for d := range b.least {
		if b.limit[d]-b.least[d] > b.limit[widest]-b.least[widest] {
			widest = d
		}
	}
	slices.SortFunc(t.order[from:to], func(i, j int32) int {
		return cmp.Or(cmp.Compare(p.all[i].vec(by)[widest], p.all[j].vec(by)[widest]), int(i-j))
	})
	half := (from + to) / 2
	t.split(p, by, from, half)
	t.cells[at].right = int32(len(t.cells))
	t.split(p, by, half, to)
}

// search measures all places of cell n that may be nearer than e.
func (t *tree) search(p *Places, by int, at *position, e *closest, n int32) {
	if len(t.cells) == 0 {
		return
	}
	b := &t.cells[n]
	if b.right == 0 {
		for _, i := range t.order[b.from:b.to] {
			p.measure(by, at, i, e)
		}
		return
	}
	one, other := n+1, b.right
	far, further := t.cells[one].minDistance(by, at), t.cells[other].minDistance(by, at)
	if further < far {
		one, other, far, further = other, one, further, far
	}
	if e.index < 0 || far <= e.distance {
		t.search(p, by, at, e, one)
	}
	if e.index < 0 || further <= e.distance {
		t.search(p, by, at, e, other)
	}
}

// within calls look for all places of cell n that may be within limit.
func (t *tree) within(by int, at *position, limit float64, n int32, look func(int32)) {
	if len(t.cells) == 0 || t.cells[n].minDistance(by, at) > limit {
		return
	}
	b := &t.cells[n]
	if b.right == 0 {
		for _, i := range t.order[b.from:b.to] {
			look(i)
		}
		return
	}
	t.within(by, at, limit, n+1, look)
	t.within(by, at, limit, b.right, look)
}

// minDistance returns a lower bound of the distance to the nearest place of a cell.
func (b *cell) minDistance(by int, at *position) float64 {
	sum := 0.0
	for d, x := range at.vec(by) {
		if out := max(b.least[d]-x, x-b.limit[d]); out > 0 {
			sum += out * out
		}
	}
	const tolerance = 1e-9
	if by == byKm {
		return sum * (1 - tolerance)
	}
	l := &at.latency
	far := math.Sqrt(sum) + l.height + b.height + min(l.adjust+b.adjust, 0)
	return far*(1-tolerance)*float64(time.Second) - 1
}
