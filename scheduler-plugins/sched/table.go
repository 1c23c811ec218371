package sched

// Table is a set of candidates that changes one at a time and is asked often.
// Its answers are those of Place and PlaceBest over the same candidates. The zero
// Table is empty. It is not for concurrent use.
type Table struct {
	cands []Candidate
	at    map[string]int
}

// Put enters a candidate, or replaces the one of its id. What it refers to must
// not change until it is put again.
func (t *Table) Put(c Candidate) {
	if i, ok := t.at[c.ID]; ok {
		t.cands[i] = c
		return
	}
	if t.at == nil {
		t.at = map[string]int{}
	}
	t.at[c.ID] = len(t.cands)
	t.cands = append(t.cands, c)
}

// Drop removes a candidate, if it is there.
func (t *Table) Drop(id string) {
	i, ok := t.at[id]
	if !ok {
		return
	}
	delete(t.at, id)
	last := len(t.cands) - 1
	if i != last {
		t.cands[i] = t.cands[last]
		t.at[t.cands[i].ID] = i
	}
	t.cands[last] = Candidate{}
	t.cands = t.cands[:last]
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

// Best is the first of Place's ranking, and whether there is one.
func (t *Table) Best(req *Request, p Plugin, seed uint64) (Choice, bool) {
	return PlaceBest(req, t.cands, p, seed)
}

// Place ranks all candidates.
func (t *Table) Place(req *Request, p Plugin, seed uint64) Result {
	return Place(req, t.cands, p, seed)
}
