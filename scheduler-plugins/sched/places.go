package sched

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Places is a set of named points, such as the nodes of a service's instances. Points change
// one at a time and are used by many requests. Finding the nearest of thousands of points is
// fast; Table.Best only looks at changes. The zero Places is empty. A Places must be used by
// one goroutine and one Table.
type Places struct {
	at         map[string]int32       // index in all, by name
	byNode     map[api.NodeID][]int32 // indexes in all, by node
	all        []place                // includes removed ones until there are too many
	removed    int                    // number of removed ones in all
	generation uint64                 // incremented when indexes in all change
	trees      [2]*tree               // trees of the first places of all, by byRTT and byKm; nil: not built
}

type place struct {
	position
	from    api.Position
	name    string
	removed bool
}

// The measures of distance between places.
const (
	byRTT = iota
	byKm
)

func (p *Places) Put(name string, at api.Position) {
	if i, ok := p.at[name]; ok {
		if p.all[i].from == at {
			return
		}
		p.Drop(name)
	}
	if p.at == nil {
		p.at = map[string]int32{}
	}
	p.at[name] = int32(len(p.all))
	p.index(int32(len(p.all)), at.Node)
	p.all = append(p.all, place{position: positionOf(at), from: at, name: name})
}

func (p *Places) index(i int32, node api.NodeID) {
	if node == "" {
		return
	}
	if p.byNode == nil {
		p.byNode = map[api.NodeID][]int32{}
	}
	p.byNode[node] = append(p.byNode[node], i)
}

func (p *Places) Drop(name string) {
	i, ok := p.at[name]
	if !ok {
		return
	}
	delete(p.at, name)
	if node := p.all[i].node; node != "" {
		if p.byNode[node] = slices.DeleteFunc(p.byNode[node], func(k int32) bool { return k == i }); len(p.byNode[node]) == 0 {
			delete(p.byNode, node)
		}
	}
	p.all[i] = place{removed: true}
	if len(p.at) == 0 {
		p.Clear()
		return
	}
	if p.removed++; p.removed > 16 && p.removed > len(p.at) {
		p.all = slices.DeleteFunc(p.all, func(k place) bool { return k.removed })
		clear(p.byNode)
		for i := range p.all {
			p.at[p.all[i].name] = int32(i)
			p.index(int32(i), p.all[i].node)
		}
		p.removed, p.trees = 0, [2]*tree{}
		p.generation++
	}
}

func (p *Places) Clear() {
	*p = Places{generation: p.generation + 1}
}

func (p *Places) Len() int { return len(p.at) }

// Points returns the positions, in the order of their names.
func (p *Places) Points() []api.Position {
	out := make([]api.Position, 0, len(p.at))
	for _, name := range slices.Sorted(maps.Keys(p.at)) {
		out = append(out, p.all[p.at[name]].from)
	}
	return out
}

// Nearest returns the name of the place that is nearest to a point by the link's measure, and
// whether it meets the link's bound.
func (p *Places) Nearest(to api.Position, l Link) (name string, keeps bool) {
	by, limit := l.measure()
	at, e := positionOf(to), noPlace
	if p.nearest(by, &at, &e); e.index < 0 {
		return "", false
	}
	return p.all[e.index].name, e.distance <= limit
}

// Within returns the names of the places that meet the link's bound from a point.
func (p *Places) Within(to api.Position, l Link) (names []string) {
	by, limit := l.measure()
	at := positionOf(to)
	for _, i := range p.byNode[at.node] {
		names = append(names, p.all[i].name)
	}
	if by == byRTT && !at.latency.known || by == byKm && !at.located {
		return names
	}
	look := func(i int32) {
		if at.node != "" && p.all[i].node == at.node {
			return // already in names
		}
		e := noPlace
		if p.measure(by, &at, i, &e); e.index >= 0 && e.distance <= limit {
			names = append(names, p.all[i].name)
		}
	}
	t := p.tree(by)
	t.within(by, &at, limit, 0, look)
	for i := t.size; i < int32(len(p.all)); i++ {
		look(i)
	}
	return names
}

// measure returns the measure of a link and its bound.
func (l Link) measure() (by int, limit float64) {
	if l.Km > 0 {
		return byKm, chordOf(l.Km)
	}
	return byRTT, float64(l.RTT)
}

// All returns the bound's points and those of its Places.
func (b *Bound) All() []api.Position {
	all := b.Points
	for _, p := range b.Places {
		all = append(slices.Clip(all), p.Points()...)
	}
	return all
}

// closest is the place nearest to a point among the first upto places.
type closest struct {
	index    int32   // index of the place; below 0: none can be measured
	compared int32   // number of places that were compared
	distance float64 // distance in nanoseconds, or as a chord
	relError float64 // relative error of far
	stamp    uint64  // of the point; see Table.stamps
}

var noPlace = closest{index: -1}

// nearest compares the places that e does not cover yet, and updates e.
func (p *Places) nearest(by int, at *position, e *closest) {
	if e.index >= 0 && p.all[e.index].removed {
		*e = closest{index: -1, stamp: e.stamp}
	}
	if n := int32(len(p.all)); e.compared < n {
		if same := p.byNode[at.node]; len(same) > 0 {
			*e = closest{index: same[0], compared: n, stamp: e.stamp}
		}
	}
	if by == byRTT && !at.latency.known || by == byKm && !at.located {
		return
	}
	if n := int32(len(p.all)); e.compared < n {
		t := p.tree(by)
		if e.compared < t.size {
			e.compared = t.size
			t.search(p, by, at, e, 0)
		}
		for ; e.compared < n; e.compared++ {
			p.measure(by, at, e.compared, e)
		}
	}
}

// measure replaces e by place i if that is nearer. Among equally near places, the one with
// the smaller error wins, so that the result does not depend on the order.
func (p *Places) measure(by int, at *position, i int32, e *closest) {
	k := &p.all[i]
	var far, wrong float64
	switch {
	case k.removed, by == byRTT && !k.latency.known, by == byKm && !k.located:
		return
	case by == byRTT:
		far, wrong = float64(at.latency.rtt(&k.latency)), max(at.latency.relError, k.latency.relError)
	default:
		far = at.point.chord(&k.point)
	}
	if e.index < 0 || far < e.distance || far == e.distance && wrong < e.relError {
		e.index, e.distance, e.relError = i, far, wrong
	}
}

// treeFrom is the number of places up to which no tree is used.
const treeFrom = 64

// tree returns a tree of the first size places. The caller must search the others one by one.
func (p *Places) tree(by int) *tree {
	t := p.trees[by]
	if t == nil {
		t = &tree{}
		p.trees[by] = t
	}
	if since := len(p.all) - int(t.size); since > treeFrom && since > int(t.size)/4 {
		t.build(p, by)
	}
	return t
}
