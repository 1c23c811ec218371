package fairshare

import (
	"container/heap"
	"container/list"
	"context"
	"fmt"
	"sync"
	"time"
)

// Policy selects which places a full Pool evicts.
type Policy struct {
	// Newest evicts the newest place of a holder, instead of the one with the oldest Take or
	// Touch.
	Newest bool

	// Renew lets a newcomer replace one of its own places that is older than RenewAfter if its
	// share is used up or no holder has at least two places more. A newcomer without a place then
	// replaces one of the largest holder.
	Renew      bool
	RenewAfter time.Duration

	// Fixed disables eviction, for work that cannot be interrupted. A holder at the coarsest level
	// then gets a further place only while more places are free than it holds.
	Fixed bool
}

// Keep evicts only from holders that have more than the newcomer, the newest place first. It is
// for streams, because the oldest should survive.
var Keep = Policy{Newest: true}

// Replace evicts the oldest place. It is for caches.
var Replace = Policy{Renew: true}

// Pool has at most Total places. While places are free, a holder gets up to its share. When the
// pool is full, a newcomer takes a place of the largest group at the coarsest level if that has at
// least two more than the newcomer's own group. If they are equal, the same rule applies to the
// members of that group. Thus a holder without a place gets one while another has two.
type Pool struct {
	bound  Bound
	policy Policy

	mu     sync.Mutex // guards the fields below
	root   *group
	places int
	depth  int    // of all paths; 0: not known yet
	turns  uint64 // number of calls of Take and Touch
}

func NewPool(b Bound, p Policy) *Pool {
	return &Pool{bound: b, policy: p, root: &group{level: -1}}
}

// group is a node of the tree of holders. A leaf holds places, the others groups.
type group struct {
	name    string
	parent  *group
	level   int // of this group in the path; the root's children are 0
	size    int // number of places in this group
	members map[string]*group
	turn    uint64     // of the last Take or Touch in this group
	order   ranking    // the members, largest first, then the least recently used
	places  *list.List // of *Place, oldest first
	index   int        // within the parent's order
}

// Place is one place of a pool, held until Release or eviction.
type Place struct {
	pool  *Pool
	at    time.Time
	leaf  *group
	elem  *list.Element
	evict func()
	gone  bool
}

// Take takes a place for the holder. evict is called when the place is evicted, on the goroutine
// of another Take; it must not block. It is not called after Release has returned true. All paths
// of a pool have the same length. The error is a *Full.
func (p *Pool) Take(now time.Time, path []string, evict func()) (*Place, error) {
	p.mu.Lock()
	if p.depth == 0 {
		p.depth = len(path)
	}
	if len(path) != p.depth || p.depth == 0 {
		p.mu.Unlock()
		panic(fmt.Sprintf("fairshare: path %q of %s has %d levels, want %d", path, p.bound.Resource, len(path), p.depth))
	}
	victim, err := p.victim(now, path)
	if err != nil {
		p.mu.Unlock()
		return nil, err
	}
	if victim != nil {
		p.remove(victim)
	}
	place := &Place{pool: p, at: now, evict: evict, leaf: p.leaf(path)}
	place.elem = place.leaf.places.PushBack(place)
	p.places++
	p.turns++
	for g := place.leaf; g != nil; g = g.parent {
		g.turn = p.turns
		g.grow(1)
	}
	p.mu.Unlock()
	if victim != nil && victim.evict != nil {
		victim.evict()
	}
	return place, nil
}

// victim returns the place to evict for the newcomer; nil: a place is free.
func (p *Pool) victim(now time.Time, path []string) (*Place, error) {
	g := p.root
	for level, name := range path {
		if g = g.members[name]; g == nil {
			break
		}
		if limit := p.bound.share(level); limit > 0 && g.size >= limit {
			if v := p.renewable(now, g, path); v != nil {
				return v, nil
			}
			return nil, &Full{Resource: p.bound.Resource, Limit: limit, Own: true, Holder: name}
		}
	}
	if p.policy.Fixed {
		own, free := p.root.members[path[0]], p.bound.Total-p.places
		switch {
		case free > 0 && (own == nil || own.size < free):
			return nil, nil
		case own != nil:
			return nil, &Full{Resource: p.bound.Resource, Limit: own.size, Own: true, Holder: own.name}
		}
		return nil, &Full{Resource: p.bound.Resource, Limit: p.bound.Total}
	}
	if p.places < p.bound.Total {
		return nil, nil
	}
	// Descend along the newcomer's path while its own group is among the largest.
	at := p.root
	for level := 0; level < len(path) && len(at.order) > 0; level++ {
		own := at.members[path[level]]
		size := 0
		if own != nil {
			size = own.size
		}
		if largest := at.order[0]; largest != own && largest.size >= size+2 {
			return p.pick(largest), nil
		}
		if own == nil {
			break
		}
		at = own
	}
	if v := p.renewable(now, at, path); v != nil {
		return v, nil
	}
	if at != p.root {
		return nil, &Full{Resource: p.bound.Resource, Limit: at.size, Own: true, Holder: at.name}
	}
	return nil, &Full{Resource: p.bound.Resource, Limit: p.bound.Total}
}

// pick returns the place of the group to evict first.
func (p *Pool) pick(g *group) *Place {
	for g.places == nil {
		g = g.order[0]
	}
	e := g.places.Front()
	if p.policy.Newest {
		e = g.places.Back()
	}
	return e.Value.(*Place)
}

// renewable returns the place in g that a newcomer may replace because of Policy.Renew, or nil. At
// each level it is one of the newcomer's own group if no other is larger by more than one, else of
// the largest group.
func (p *Pool) renewable(now time.Time, g *group, path []string) *Place {
	if !p.policy.Renew {
		return nil
	}
	for g.places == nil {
		if own := g.members[path[g.level+1]]; own != nil && own.size+1 >= g.order[0].size {
			g = own
		} else {
			g = g.order[0]
		}
	}
	if v := p.pick(g); now.Sub(v.at) >= p.policy.RenewAfter {
		return v
	}
	return nil
}

func (p *Pool) leaf(path []string) *group {
	g := p.root
	for level, name := range path {
		next := g.members[name]
		if next == nil {
			next = &group{name: name, parent: g, level: level}
			if g.members == nil {
				g.members = map[string]*group{}
			}
			g.members[name] = next
			heap.Push(&g.order, next)
		}
		g = next
	}
	if g.places == nil {
		g.places = list.New()
	}
	return g
}

func (p *Pool) remove(v *Place) {
	v.gone = true
	v.leaf.places.Remove(v.elem)
	p.places--
	for g := v.leaf; g != nil; g = g.parent {
		g.grow(-1)
		if g.size == 0 && g.parent != nil {
			heap.Remove(&g.parent.order, g.index)
			delete(g.parent.members, g.name)
		}
	}
}

func (g *group) grow(by int) {
	g.size += by
	if g.parent != nil {
		heap.Fix(&g.parent.order, g.index)
	}
}

// Release frees the place and reports whether it was still held.
func (pl *Place) Release() bool {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	if pl.gone {
		return false
	}
	pl.pool.remove(pl)
	return true
}

// Touch makes the place its holder's newest.
func (pl *Place) Touch(now time.Time) {
	pl.pool.mu.Lock()
	defer pl.pool.mu.Unlock()
	if pl.gone {
		return
	}
	pl.at = now
	pl.leaf.places.MoveToBack(pl.elem)
	pl.pool.turns++
	for g := pl.leaf; g != nil; g = g.parent {
		g.turn = pl.pool.turns
		g.grow(0)
	}
}

type placeKey struct{}

// NewContext returns a context that carries the place, for ReleasePlace.
func (pl *Place) NewContext(ctx context.Context) context.Context {
	return context.WithValue(ctx, placeKey{}, pl)
}

// ReleasePlace releases the place that ctx carries, if any. A request calls it when it becomes a
// stream, which has its own bound.
func ReleasePlace(ctx context.Context) {
	if pl, ok := ctx.Value(placeKey{}).(*Place); ok {
		pl.Release()
	}
}

func (p *Pool) Size() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.places
}

// Held returns the number of places of the holder of the path, or of a prefix of one.
func (p *Pool) Held(path ...string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := p.root
	for _, name := range path {
		if g = g.members[name]; g == nil {
			return 0
		}
	}
	return g.size
}

// ranking is a heap of groups, the largest first.
type ranking []*group

func (r ranking) Len() int { return len(r) }
func (r ranking) Less(i, j int) bool {
	if r[i].size != r[j].size {
		return r[i].size > r[j].size
	}
	return r[i].turn < r[j].turn
}

func (r ranking) Swap(i, j int) {
	r[i], r[j] = r[j], r[i]
	r[i].index, r[j].index = i, j
}

func (r *ranking) Push(x any) {
	g := x.(*group)
	g.index = len(*r)
	*r = append(*r, g)
}

func (r *ranking) Pop() any {
	old := *r
	g := old[len(old)-1]
	old[len(old)-1] = nil
	*r = old[:len(old)-1]
	return g
}
