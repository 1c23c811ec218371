package fairshare

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"sync"
	"time"
)

// Turns bounds the number of holders that work at the same time; the others wait. The next turn
// goes to the waiter whose group has the fewest workers, then to the one whose group was served
// longest ago. The number of waiters is bounded by the bound's Total and Share. When it is
// reached, a newcomer replaces the newest waiter of the largest holder, whose Enter returns a
// *Full.
type Turns struct {
	atOnce int
	share  int
	name   string
	total  int
	queue  *Pool

	each int // maximum of workers that use one resource; 0: no maximum

	mu      sync.Mutex // guards the fields below; not held while the queue is called
	running int
	served  uint64 // turns so far
	waiters []*waiter
	groups  map[string]*tally // by prefix of a path; those with waiters or workers
	uses    map[string]int    // workers by the resource that they use, if each is set
}

// tally counts the waiters and workers of one group.
type tally struct {
	waiting, running int
	served           uint64 // number of its last turn
}

type waiter struct {
	groups []string // the prefixes of its path, coarsest first
	uses   string   // the resource that it uses
	urgent bool
	turn   chan struct{} // closed when its turn comes
	drop   chan struct{} // closed when it loses its place in the queue
}

// commonEvery is n if one of n turns goes to a waiter that is not urgent.
const commonEvery = 5

// NewTurns returns Turns for atOnce holders at the same time, at most share of one group
// at the coarsest level (0: atOnce). The bound limits the waiters.
func NewTurns(b Bound, atOnce, share int) *Turns {
	if share <= 0 {
		share = atOnce
	}
	b.Share = append([]int{0}, b.Share...) // the first level of the queue's paths is the class
	return &Turns{
		atOnce: atOnce, share: share, name: b.Resource, total: b.Total,
		queue: NewPool(b, Policy{Newest: true}), groups: map[string]*tally{}, uses: map[string]int{},
	}
}

// Each returns t with at most n workers at the same time that use the same resource, see Using.
// It is called before the first Enter.
func (t *Turns) Each(n int) *Turns {
	t.each = n
	return t
}

// Enter waits for the holder's turn and returns the function that ends it, which may be called
// more than once. Urgent waiters get four of five turns. The error is a *Full or that of ctx.
func (t *Turns) Enter(ctx context.Context, now time.Time, path []string, urgent bool) (leave func(), err error) {
	return t.Using(ctx, now, "", path, urgent)
}

// Using is Enter for a worker that uses a resource, such as a node. A waiter whose resource is in
// use holds no turn meanwhile.
func (t *Turns) Using(ctx context.Context, now time.Time, resource string, path []string, urgent bool) (leave func(), err error) {
	w := &waiter{uses: resource, urgent: urgent, turn: make(chan struct{}), drop: make(chan struct{})}
	for i := range path {
		w.groups = append(w.groups, strings.Join(path[:i+1], "\x00"))
	}
	leave = sync.OnceFunc(func() { t.leave(w) })
	if t.join(w, false) {
		return leave, nil
	}
	class := "common"
	if urgent {
		class = "urgent"
	}
	place, err := t.queue.Take(now, append([]string{class}, path...), func() { close(w.drop) })
	if err != nil {
		return nil, err
	}
	defer place.Release()
	t.join(w, true)
	select {
	case <-w.turn:
		return leave, nil
	case <-w.drop:
		err = &Full{Resource: t.name, Limit: t.total}
	case <-ctx.Done():
		err = ctx.Err()
	}
	if !t.withdraw(w) {
		leave() // its turn came meanwhile
	}
	return nil, err
}

// join starts w at once if nobody else waits and a worker is free. Otherwise it adds w to the
// waiters if wait is set, else it returns false.
func (t *Turns) join(w *waiter, wait bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !wait && (len(t.waiters) > 0 || !t.free(w)) {
		return false
	}
	for _, g := range w.groups {
		if t.groups[g] == nil {
			t.groups[g] = &tally{served: t.served} // with 0, new names would always be first
		}
		t.groups[g].waiting++
	}
	t.waiters = append(t.waiters, w)
	t.serve()
	return true
}

// free reports whether a worker is free for w's group and resource.
func (t *Turns) free(w *waiter) bool {
	if t.each > 0 && t.uses[w.uses] >= t.each {
		return false
	}
	g := t.groups[w.groups[0]]
	return t.running < t.atOnce && (g == nil || g.running < t.share)
}

// serve starts waiters while workers are free.
func (t *Turns) serve() {
	for t.running < t.atOnce {
		next := -1
		common := t.served%commonEvery == commonEvery-1
		for i, w := range t.waiters {
			if t.free(w) && (next < 0 || t.before(w, t.waiters[next], common)) {
				next = i
			}
		}
		if next < 0 {
			return
		}
		w := t.waiters[next]
		t.waiters = slices.Delete(t.waiters, next, next+1)
		t.served++
		t.running++
		if t.each > 0 {
			t.uses[w.uses]++
		}
		for _, g := range w.groups {
			t.groups[g].waiting--
			t.groups[g].running++
			t.groups[g].served = t.served
		}
		close(w.turn)
	}
}

// before reports whether a is served before b, which has waited longer.
func (t *Turns) before(a, b *waiter, common bool) bool {
	if a.urgent != b.urgent {
		return a.urgent != common
	}
	for i := range a.groups {
		if a.groups[i] == b.groups[i] {
			continue
		}
		x, y := t.groups[a.groups[i]], t.groups[b.groups[i]]
		return cmp.Or(cmp.Compare(x.running, y.running), cmp.Compare(x.served, y.served)) < 0
	}
	return false
}

// withdraw removes the waiter, and reports false if its turn has come already.
func (t *Turns) withdraw(w *waiter) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.Index(t.waiters, w)
	if i < 0 {
		return false
	}
	t.waiters = slices.Delete(t.waiters, i, i+1)
	for _, g := range w.groups {
		t.groups[g].waiting--
	}
	t.forget(w)
	return true
}

func (t *Turns) leave(w *waiter) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	if t.uses[w.uses]--; t.uses[w.uses] <= 0 {
		delete(t.uses, w.uses)
	}
	for _, g := range w.groups {
		t.groups[g].running--
	}
	t.serve()
	t.forget(w)
}

// forget drops the waiter's groups that are empty.
func (t *Turns) forget(w *waiter) {
	for _, g := range w.groups {
		if k := t.groups[g]; k.waiting == 0 && k.running == 0 {
			delete(t.groups, g)
		}
	}
}

// Load returns the number of workers and of waiters.
func (t *Turns) Load() (running, waiting int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running, len(t.waiters)
}
