package sched

import (
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
)

// Places are named points that many requests are measured against while they change
// one at a time: where the instances of a service are. They are found as fast among
// thousands as among a few, and Table.Best looks at what has changed alone. The zero
// Places is empty. It is not for concurrent use, but by one Table.
type Places struct {
	at   map[string]int32       // in all
	on   map[api.NodeID][]int32 // in all: those that are nodes, by node
	all  []place                // includes removed ones until they are too many
	gone int
	life uint64   // of all; another begins when those that left are cleared away
	in   [2]*tree // the first of all, by what they are measured with; nil: not yet
}

type place struct {
	position
	from api.Position
	name string
	gone bool
}

// How places are measured, as an index.
const (
	byRTT = iota
	byKm
)

// Put enters a place, or replaces the one of its name.
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
	k := place{from: at, name: name}
	k.read(&Candidate{Geo: at.Geo, Coord: at.Coord})
	k.node = at.Node
	p.at[name] = int32(len(p.all))
	p.enter(int32(len(p.all)), at.Node)
	p.all = append(p.all, k)
}

// enter records which node a place is.
func (p *Places) enter(i int32, node api.NodeID) {
	if node == "" {
		return
	}
	if p.on == nil {
		p.on = map[api.NodeID][]int32{}
	}
	p.on[node] = append(p.on[node], i)
}

// Drop removes a place, if it is there.
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

// Clear removes all.
func (p *Places) Clear() {
	*p = Places{life: p.life + 1}
}

// Len is how many there are.
func (p *Places) Len() int { return len(p.at) }

// Points are where they are, in the order of their names.
func (p *Places) Points() []api.Position {
	order := make([]int32, 0, len(p.at))
	for _, i := range p.at {
		order = append(order, i)
	}
	slices.SortFunc(order, func(a, b int32) int { return strings.Compare(p.all[a].name, p.all[b].name) })
	out := make([]api.Position, len(order))
	for i, k := range order {
		out[i] = p.all[k].from
	}
	return out
}

// Nearest is the name of the place that is nearest to a point by what a link is
// measured with, and whether it is near enough.
func (p *Places) Nearest(to api.Position, l Link) (name string, keeps bool) {
	by, most := l.measure()
	at, e := position{}, nobody
	at.read(&Candidate{Geo: to.Geo, Coord: to.Coord})
	at.node = to.Node
	if p.nearest(by, &at, &e); e.which < 0 {
		return "", false
	}
	return p.all[e.which].name, e.far <= most
}

// Within are the names of the places that are near enough to a point for a link.
func (p *Places) Within(to api.Position, l Link) (names []string) {
	by, most := l.measure()
	var at position
	at.read(&Candidate{Geo: to.Geo, Coord: to.Coord})
	at.node = to.Node
	for _, i := range p.on[at.node] {
		names = append(names, p.all[i].name)
	}
	if by == byRTT && !at.latent.known || by == byKm && !at.located {
		return names
	}
	look := func(i int32) {
		if at.node != "" && p.all[i].node == at.node {
			return // is among them
		}
		e := nobody
		if p.measure(by, &at, i, &e); e.which >= 0 && e.far <= most {
			names = append(names, p.all[i].name)
		}
	}
	t := p.tree(by)
	t.within(by, &at, most, 0, look)
	for i := t.size; i < int32(len(p.all)); i++ {
		look(i)
	}
	return names
}

// measure is how a link's places are measured, and the most that they may be away.
func (l Link) measure() (by int, most float64) {
	if l.Km > 0 {
		return byKm, chordOf(l.Km)
	}
	return byRTT, float64(l.RTT)
}

// All are the bound's points, those of its Places as well.
func (b *Bound) All() []api.Position {
	all := b.Points
	for _, p := range b.Places {
		all = append(slices.Clip(all), p.Points()...)
	}
	return all
}

// closest is the nearest of some places to a point, as far as the first upto of them
// were looked at.
type closest struct {
	which int32 // the place; below 0: none of them has what it is measured by
	upto  int32
	far   float64 // nanoseconds, or a chord
	wrong float64
	stamp uint64 // of the point
}

var nobody = closest{which: -1}

// nearest brings e up to date for a point.
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

// measure lets a place be the nearest, if it is. Of equals the surer one is, so that
// it does not matter which is looked at first.
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

// treeFrom is how many places are looked at one by one.
const treeFrom = 64

// tree has most of the places; those that came since are few.
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
