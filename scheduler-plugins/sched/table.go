package sched

import (
	"maps"
	"math"

	"github.com/treeline-edge/treeline/api"
)

// Table is a set of candidates that changes one at a time and is asked often.
// Its answers are those of Place and PlaceBest over the same candidates. The zero
// Table is empty. It is not for concurrent use.
//
// What a decision reads of every node lies side by side in rows, a cache line
// each, and where it is in spots. What many nodes have alike (runtimes, processor,
// areas, addons; labels) is kept once per kind and judged once per request.
// Clusters, of which there are fewer and which have several rooms, are asked as
// Place asks them.
type Table struct {
	cands []Candidate
	at    map[string]int

	rows   []row           // parallel to cands
	spots  []position      // parallel to cands
	stamps []uint64        // parallel to cands: when it came to be in its spot
	stamp  uint64          // the last of them
	free   []api.Resources // parallel to cands: what one instance can get, for when more is asked than rows have
	kinds  interned[kind]
	labels interned[map[string]string]

	// Parallel to cands, what it scores at most, whatever is asked that sets no
	// bounds; of the plugin that was asked last, nil if it is not Monotone.
	ceilings []float64
	ceiling  Monotone

	// What a decision uses, kept for the next one.
	q      query
	near   []*nearby
	asked  uint64   // of near
	barred []uint32 // parallel to cands: the last turn in which it was barred
	turn   uint32
}

// row is what every decision reads of a node: 64 bytes.
type row struct {
	freeCPU, freeMemory         int64 // that one instance can get
	restCPU, restMemory         int64 // free on all of it, less what one more instance costs by itself
	capacityCPU, capacityMemory float64
	lot                         uint64 // of its id
	kind, labels                uint32
}

// like reports whether a plugin cannot tell the nodes apart, but for peers.
func (r *row) like(o *row) bool {
	return r.restCPU == o.restCPU && r.restMemory == o.restMemory && r.capacityCPU == o.capacityCPU && r.capacityMemory == o.capacityMemory
}

// The kinds that are not in a table's kinds.
const (
	kindOut   = 0 // it takes no work
	kindOther = 1 // it is no node with one room: ask as Place does
	kindFirst = 2
)

// Put enters a candidate, or replaces the one of its id. What it refers to must
// not change until it is put again.
func (t *Table) Put(c Candidate) {
	i, ok := t.at[c.ID]
	if !ok {
		if t.at == nil {
			t.at = map[string]int{}
		}
		i = len(t.cands)
		t.at[c.ID] = i
		t.cands = append(t.cands, c)
		t.rows = append(t.rows, row{lot: lotOf(c.ID)})
		t.spots = append(t.spots, position{})
		t.stamp++
		t.stamps = append(t.stamps, t.stamp)
		t.free = append(t.free, api.Resources{})
		t.barred = append(t.barred, 0)
		t.ceilings = append(t.ceilings, 0)
	}
	t.cands[i] = c
	t.rewrite(i)
	t.raise(i)
}

// raise sets what candidate i scores at most.
func (t *Table) raise(i int) {
	t.ceilings[i] = math.Inf(1)
	r := &t.rows[i]
	if t.ceiling == nil || r.kind == kindOut {
		return
	}
	// An empty request is the one that leaves the most.
	facts := r.facts(&nothing)
	if r.kind == kindOther {
		facts = (&query{Request: &nothing}).facts(&t.cands[i])
	}
	if most := t.ceiling.Reckon(facts); !math.IsNaN(most) {
		t.ceilings[i] = most
	}
}

// nothing is asked for by it.
var nothing Request

// facts are those about a request that sets no bounds and asks for no disk or
// bandwidth.
func (r *row) facts(req *Request) Facts {
	return Facts{
		CPU:    part(r.restCPU-req.Needs.MilliCPU, r.capacityCPU),
		Memory: part(r.restMemory-req.Needs.MemoryMB, r.capacityMemory),
		Rest:   1, Margin: 1, Fresh: 1, req: req,
	}
}

// follow has the ceilings be those of the plugin.
func (t *Table) follow(m Monotone) {
	if t.ceiling == nil || t.ceiling.Name() != m.Name() {
		t.ceiling = m
		for i := range t.rows {
			t.raise(i)
		}
	}
}

// rewrite makes row i that of its candidate.
func (t *Table) rewrite(i int) {
	c, r := &t.cands[i], &t.rows[i]
	if c.Level != Nodes || len(c.Rooms) != 1 {
		t.release(r)
		r.kind = kindOther
		t.locate(i)
		return
	}
	if c.Out != "" {
		t.release(r)
		return
	}
	room := &c.Rooms[0]
	free := available(c, room)
	load := int64(c.Load + 1)
	t.free[i] = free
	r.freeCPU, r.freeMemory = free.MilliCPU, free.MemoryMB
	r.restCPU, r.restMemory = c.Free.MilliCPU-load*overhead.MilliCPU, c.Free.MemoryMB-load*overhead.MemoryMB
	r.capacityCPU, r.capacityMemory = float64(c.Capacity.MilliCPU), float64(c.Capacity.MemoryMB)

	t.locate(i)

	if r.kind < kindFirst || !t.kinds.at(r.kind-kindFirst).is(room) {
		was := r.kind
		r.kind = kindFirst + t.kinds.take(kindKey(room), func() kind { return kindOf(room) })
		if was >= kindFirst {
			t.kinds.drop(was - kindFirst)
		}
	}
	if len(c.Labels) == 0 && r.labels == 0 || r.labels > 0 && maps.Equal(*t.labels.at(r.labels - 1), c.Labels) {
		return
	}
	was := r.labels
	if r.labels = 0; len(c.Labels) > 0 {
		r.labels = 1 + t.labels.take(labelKey(c.Labels), func() map[string]string { return maps.Clone(c.Labels) })
	}
	if was > 0 {
		t.labels.drop(was - 1)
	}
}

// locate notes where a candidate is.
func (t *Table) locate(i int) {
	p := &t.spots[i]
	was := *p
	if p.read(&t.cands[i]); *p != was {
		t.stamp++
		t.stamps[i] = t.stamp
	}
}

// release makes a row one that takes no work.
func (t *Table) release(r *row) {
	if r.kind >= kindFirst {
		t.kinds.drop(r.kind - kindFirst)
	}
	if r.labels > 0 {
		t.labels.drop(r.labels - 1)
	}
	r.kind, r.labels = kindOut, 0
}

// Drop removes a candidate, if it is there.
func (t *Table) Drop(id string) {
	i, ok := t.at[id]
	if !ok {
		return
	}
	t.release(&t.rows[i])
	delete(t.at, id)
	last := len(t.cands) - 1
	if i != last {
		t.cands[i], t.rows[i], t.spots[i], t.free[i] = t.cands[last], t.rows[last], t.spots[last], t.free[last]
		t.barred[i], t.ceilings[i], t.stamps[i] = t.barred[last], t.ceilings[last], t.stamps[last]
		t.at[t.cands[i].ID] = i
	}
	t.cands[last] = Candidate{}
	t.cands, t.rows, t.spots, t.free = t.cands[:last], t.rows[:last], t.spots[:last], t.free[:last]
	t.barred, t.ceilings, t.stamps = t.barred[:last], t.ceilings[:last], t.stamps[:last]
}

// Get is the candidate of an id, nil if there is none. It is to be read, until
// the next Put or Drop.
func (t *Table) Get(id string) *Candidate {
	if i, ok := t.at[id]; ok {
		return &t.cands[i]
	}
	return nil
}

// All are the candidates, in no order that means anything; to be read, until the
// next Put or Drop.
func (t *Table) All() []Candidate { return t.cands }

// Place ranks all candidates.
func (t *Table) Place(req *Request, p Plugin, seed uint64) Result {
	t.q.readFor(req, t)
	defer t.forget()
	return t.q.place(t.cands, p, seed)
}

// forget lets go of the request: what the caller has is the caller's.
func (t *Table) forget() {
	t.q.Request = nil
	for i := range t.q.bounds {
		t.q.bounds[i].Bound = nil
	}
}

// Top are the first of Place's ranking, at most so many.
func (t *Table) Top(req *Request, p Plugin, seed uint64, most int) []Choice {
	t.q.readFor(req, t)
	defer t.forget()
	return t.q.top(t.cands, p, seed, most)
}

// Best is the first of Place's ranking, and whether there is one.
func (t *Table) Best(req *Request, p Plugin, seed uint64) (Choice, bool) {
	r, ok := p.(Reckoner)
	if !ok { // it wants to see the candidates
		return PlaceBest(req, t.cands, p, seed)
	}
	t.q.readFor(req, t)
	defer t.forget()
	s := search{table: t, q: &t.q, plugin: r, seed: seed, peers: len(req.Peers) > 0}
	if m, ok := p.(Monotone); ok {
		t.follow(m)
		s.capped, s.peers = !t.q.bounded(), s.peers && m.Monotone()
	}
	s.run()
	if !s.found {
		return Choice{}, false
	}
	return Choice{ID: t.cands[s.best].ID, Score: s.score}, true
}
