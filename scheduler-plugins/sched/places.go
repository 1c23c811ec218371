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
	at   map[string]int32       // index in all, by name
	on   map[api.NodeID][]int32 // indexes in all, by node
	all  []place                // includes removed ones until there are too many
	gone int                    // number of removed ones in all
	life uint64                 // incremented when indexes in all change
	in   [2]*tree               // trees of the first places of all, by byRTT and byKm; nil: not built
}

type place struct {
	position
	from api.Position
	name string
	gone bool
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
	p.enter(int32(len(p.all)), at.Node)
	p.all = append(p.all, place{position: positionOf(at), from: at, name: name})
}

func (p *Places) enter(i int32, node api.NodeID) {
	if node == "" {
		return
	}
	if p.on == nil {
		p.on = map[api.NodeID][]int32{}
	}
	p.on[node] = append(p.on[node], i)
}

func (p *Places) Drop(name string) {
	i, ok := p.at[name]
	if !ok {
		return
	}
	delete(p.at, name)
	if node := p.all[i].node; node != "" {
		if p.on[node] = slices.DeleteFunc(p.on[node], func(k int32) bool { return k == i }); len(p.on[node]) == 0 {
			delete(p.on, node)
		}
	}
	p.all[i] = place{gone: true}
	if len(p.at) == 0 {
		p.Clear()
		return
	}
	if p.gone++; p.gone > 16 && p.gone > len(p.at) {
		p.all = slices.DeleteFunc(p.all, func(k place) bool { return k.gone })
		clear(p.on)
		for i := range p.all {
			p.at[p.all[i].name] = int32(i)
			p.enter(int32(i), p.all[i].node)
		}
		p.gone, p.in = 0, [2]*tree{}
		p.life++
	}
}

func (p *Places) Clear() {
	*p = Places{life: p.life + 1}
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
	at, e := positionOf(to), nobody
	if p.nearest(by, &at, &e); e.which < 0 {
		return "", false
	}
	return p.all[e.which].name, e.far <= limit
}

// Within returns the names of the places that meet the link's bound from a point.
func (p *Places) Within(to api.Position, l Link) (names []string) {
	by, limit := l.measure()
	at := positionOf(to)
	for _, i := range p.on[at.node] {
		names = append(names, p.all[i].name)
	}
	if by == byRTT && !at.latent.known || by == byKm && !at.located {
		return names
	}
	look := func(i int32) {
		if at.node != "" && p.all[i].node == at.node {
			return // already in names
		}
		e := nobody
		if p.measure(by, &at, i, &e); e.which >= 0 && e.far <= limit {
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
	which int32   // index of the place; below 0: none can be measured
	upto  int32   // number of places that were compared
	far   float64 // distance in nanoseconds, or as a chord
	wrong float64 // relative error of far
	stamp uint64  // of the point; see Table.stamps
}

var nobody = closest{which: -1}

// nearest compares the places that e does not cover yet, and updates e.
func (p *Places) nearest(by int, at *position, e *closest) {
	if e.which >= 0 && p.all[e.which].gone {
		*e = closest{which: -1, stamp: e.stamp}
	}
	if n := int32(len(p.all)); e.upto < n {
		if same := p.on[at.node]; len(same) > 0 {
			*e = closest{which: same[0], upto: n, stamp: e.stamp}
		}
	}
	if by == byRTT && !at.latent.known || by == byKm && !at.located {
		return
	}
	if n := int32(len(p.all)); e.upto < n {
		t := p.tree(by)
		if e.upto < t.size {
			e.upto = t.size
			t.search(p, by, at, e, 0)
		}
		for ; e.upto < n; e.upto++ {
			p.measure(by, at, e.upto, e)
		}
	}
}

// measure replaces e by place i if that is nearer. Among equally near places, the one with
// the smaller error wins, so that the result does not depend on the order.
func (p *Places) measure(by int, at *position, i int32, e *closest) {
	k := &p.all[i]
	var far, wrong float64
	switch {
	case k.gone, by == byRTT && !k.latent.known, by == byKm && !k.located:
		return
	case by == byRTT:
		far, wrong = float64(at.latent.rtt(&k.latent)), max(at.latent.wrong, k.latent.wrong)
	default:
		far = at.point.chord(&k.point)
	}
	if e.which < 0 || far < e.far || far == e.far && wrong < e.wrong {
		e.which, e.far, e.wrong = i, far, wrong
	}
}

// treeFrom is the number of places up to which no tree is used.
const treeFrom = 64

// tree returns a tree of the first size places. The caller must search the others one by one.
func (p *Places) tree(by int) *tree {
	t := p.in[by]
	if t == nil {
		t = &tree{}
		p.in[by] = t
	}
	if since := len(p.all) - int(t.size); since > treeFrom && since > int(t.size)/4 {
		t.grow(p, by)
	}
	return t
}
