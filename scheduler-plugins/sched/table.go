package sched

import (
	"maps"
	"math"

	"github.com/treeline-edge/treeline/api"
)

// Table is a set of candidates that changes one at a time and is queried often. Its answers
// equal those of Place and PlaceBest over the same candidates. The zero Table is empty. It is
// not safe for concurrent use.
//
// The values that every decision reads are in rows, one cache line per node, and positions
// are in spots. Properties that many nodes share (runtimes, processor, areas, addons; labels)
// are stored once per kind and checked once per request. Clusters are checked as in Place.
type Table struct {
	cands []Candidate
	at    map[string]int

	rows      []row           // parallel to cands
	positions []position      // parallel to cands
	stamps    []uint64        // parallel to cands: identifies the position in spots
	stamp     uint64          // the last stamp
	free      []api.Resources // parallel to cands: what one instance can get
	kinds     interned[Slot]
	labels    interned[map[string]string]

	// ceilings is parallel to cands: the maximal scores for requests without bounds by the
	// plugin ceiling, the last Monotone plugin that was used; nil: none.
	ceilings []float64
	ceiling  Monotone

	// Memory that decisions reuse.
	q        query
	caches   []*nearby
	uses     uint64   // counts uses of near
	excluded []uint32 // parallel to cands: the last turn in which the candidate was barred
	round    uint32   // of Best
}

// row has the values of a node that every decision reads, in 64 bytes.
type row struct {
	freeCPU, freeMemory         int64 // that one instance can get
	restCPU, restMemory         int64 // free on the candidate, minus the overhead of all instances and one more
	capacityCPU, capacityMemory float64
	tiebreakBase                uint64 // see tiebreakBase
	kind, labels                uint32 // kindFirst + id in kinds; 1 + id in labels, 0: no labels
}

// scoresAs reports whether a plugin scores the nodes alike, except for peers.
func (r *row) scoresAs(o *row) bool {
	return r.restCPU == o.restCPU && r.restMemory == o.restMemory && r.capacityCPU == o.capacityCPU && r.capacityMemory == o.capacityMemory
}

// Values of row.kind that are not in a table's kinds.
const (
	kindOut   = 0 // a node that takes no work
	kindOther = 1 // not a node with one slot: filter it as in Place
	kindFirst = 2
)

// Put adds a candidate or replaces the one with its id. The values that it refers to must not
// change until the next Put.
func (t *Table) Put(c Candidate) {
	i, ok := t.at[c.ID]
	if !ok {
		if t.at == nil {
			t.at = map[string]int{}
		}
		i = len(t.cands)
		t.at[c.ID] = i
		t.cands = append(t.cands, c)
		t.rows = append(t.rows, row{tiebreakBase: tiebreakBase(c.ID)})
		t.positions = append(t.positions, position{})
		t.stamp++
		t.stamps = append(t.stamps, t.stamp)
		t.free = append(t.free, api.Resources{})
		t.excluded = append(t.excluded, 0)
		t.ceilings = append(t.ceilings, 0)
	}
	t.cands[i] = c
	t.updateRow(i)
	t.setCeiling(i)
}

// setCeiling computes the maximal score of candidate i.
func (t *Table) setCeiling(i int) {
	t.ceilings[i] = math.Inf(1)
	r := &t.rows[i]
	if t.ceiling == nil || r.kind == kindOut {
		return
	}
	facts := r.facts(&emptyRequest) // an empty request leaves the most free
	if r.kind == kindOther {
		facts = (&query{Request: &emptyRequest}).facts(&t.cands[i])
	}
	if limit := t.ceiling.Score(facts); !math.IsNaN(limit) {
		t.ceilings[i] = limit
	}
}

// emptyRequest is an empty request.
var emptyRequest Request

// facts returns the Facts of a request without bounds, disk and bandwidth.
func (r *row) facts(req *Request) Facts {
	return Facts{
		CPU:    fraction(r.restCPU-req.Needs.MilliCPU, r.capacityCPU),
		Memory: fraction(r.restMemory-req.Needs.MemoryMB, r.capacityMemory),
		Rest:   1, Margin: 1, Fresh: 1, req: req,
	}
}

// useCeilings computes the ceilings for the plugin.
func (t *Table) useCeilings(m Monotone) {
	if t.ceiling == nil || t.ceiling.Name() != m.Name() {
		t.ceiling = m
		for i := range t.rows {
			t.setCeiling(i)
		}
	}
}

func (t *Table) updateRow(i int) {
	c, r := &t.cands[i], &t.rows[i]
	if c.Level != Nodes || len(c.Slots) != 1 {
		t.clearRow(r)
		r.kind = kindOther
		t.updatePosition(i)
		return
	}
	if c.Out != "" {
		t.clearRow(r)
		return
	}
	slot := &c.Slots[0]
	free := slotCapacity(c, slot)
	load := int64(c.Load + 1)
	t.free[i] = free
	r.freeCPU, r.freeMemory = free.MilliCPU, free.MemoryMB
	r.restCPU, r.restMemory = c.Free.MilliCPU-load*overhead.MilliCPU, c.Free.MemoryMB-load*overhead.MemoryMB
	r.capacityCPU, r.capacityMemory = float64(c.Capacity.MilliCPU), float64(c.Capacity.MemoryMB)

	t.updatePosition(i)

	if r.kind < kindFirst || !sameKind(t.kinds.at(r.kind-kindFirst), slot) {
		was := r.kind
		r.kind = kindFirst + t.kinds.acquire(kindKey(slot), func() Slot { return kindOf(slot) })
		if was >= kindFirst {
			t.kinds.release(was - kindFirst)
		}
	}
	if len(c.Labels) == 0 && r.labels == 0 || r.labels > 0 && maps.Equal(*t.labels.at(r.labels - 1), c.Labels) {
		return
	}
	was := r.labels
	if r.labels = 0; len(c.Labels) > 0 {
		r.labels = 1 + t.labels.acquire(labelKey(c.Labels), func() map[string]string { return maps.Clone(c.Labels) })
	}
	if was > 0 {
		t.labels.release(was - 1)
	}
}

func (t *Table) updatePosition(i int) {
	p := &t.positions[i]
	was := *p
	if p.read(&t.cands[i]); *p != was {
		t.stamp++
		t.stamps[i] = t.stamp
	}
}

// clearRow marks a row as out of service.
func (t *Table) clearRow(r *row) {
	if r.kind >= kindFirst {
		t.kinds.release(r.kind - kindFirst)
	}
	if r.labels > 0 {
		t.labels.release(r.labels - 1)
	}
	r.kind, r.labels = kindOut, 0
}

func (t *Table) Drop(id string) {
	i, ok := t.at[id]
	if !ok {
		return
	}
	t.clearRow(&t.rows[i])
	delete(t.at, id)
	last := len(t.cands) - 1
	if i != last {
		t.cands[i], t.rows[i], t.positions[i], t.free[i] = t.cands[last], t.rows[last], t.positions[last], t.free[last]
		t.excluded[i], t.ceilings[i], t.stamps[i] = t.excluded[last], t.ceilings[last], t.stamps[last]
		t.at[t.cands[i].ID] = i
	}
	t.cands[last] = Candidate{}
	t.cands, t.rows, t.positions, t.free = t.cands[:last], t.rows[:last], t.positions[:last], t.free[:last]
	t.excluded, t.ceilings, t.stamps = t.excluded[:last], t.ceilings[:last], t.stamps[:last]
}

// Get returns the candidate with the id, or nil. It is read-only and valid until the next Put
// or Drop.
func (t *Table) Get(id string) *Candidate {
	if i, ok := t.at[id]; ok {
		return &t.cands[i]
	}
	return nil
}

// All returns the candidates in no particular order. They are read-only and valid until the
// next Put or Drop.
func (t *Table) All() []Candidate { return t.cands }

// Place is the function Place over the table's candidates.
func (t *Table) Place(req *Request, p Plugin, seed uint64) Result {
	t.q.readFor(req, t)
	defer t.dropRequest()
	return t.q.place(t.cands, p, seed)
}

// dropRequest drops the references to the request.
func (t *Table) dropRequest() {
	t.q.Request = nil
	for i := range t.q.bounds {
		t.q.bounds[i].Bound = nil
	}
}

// Top returns the first limit candidates of Place's ranking.
func (t *Table) Top(req *Request, p Plugin, seed uint64, limit int) []Choice {
	t.q.readFor(req, t)
	defer t.dropRequest()
	return t.q.top(t.cands, p, seed, limit)
}

// Best returns the first candidate of Place's ranking, and whether there is one.
func (t *Table) Best(req *Request, p Plugin, seed uint64) (Choice, bool) {
	t.q.readFor(req, t)
	defer t.dropRequest()
	s := search{table: t, q: &t.q, plugin: p, seed: seed, peers: len(req.Peers) > 0}
	if m, ok := p.(Monotone); ok {
		t.useCeilings(m)
		s.capped, s.peers = !t.q.boundsDistance(), s.peers && m.Monotone()
	}
	s.run()
	if !s.found {
		return Choice{}, false
	}
	return Choice{ID: t.cands[s.best].ID, Score: s.score}, true
}
