package sched

import (
	"cmp"
	"math"
	"slices"
)

// Place ranks the candidates that fit, best first, and returns for each other candidate the
// constraint that excluded it. The seed orders candidates of equal score, so that equal
// requests spread and each answer can be replayed. Place does not retain or modify its
// arguments.
func Place(req *Request, candidates []Candidate, p Plugin, seed uint64) Result {
	var q query
	q.read(req)
	return q.place(candidates, p, seed)
}

func (q *query) place(candidates []Candidate, p Plugin, seed uint64) (res Result) {
	fits := make([]scored, 0, len(candidates))
	for i := range candidates {
		c := &candidates[i]
		q.setRow(i)
		if stage := q.stageOf(c); stage != fit {
			res.Rejected = append(res.Rejected, q.reject(c, stage))
			continue
		}
		fits = append(fits, q.scoreOf(c, p, seed))
	}
	slices.SortFunc(fits, scored.compare)
	res.Ranked = choices(fits)
	return res
}

func choices(of []scored) []Choice {
	out := make([]Choice, len(of))
	for i, k := range of {
		out[i] = Choice{ID: k.id, Score: k.score}
	}
	return out
}

// PlaceBest returns the first candidate of Place's ranking, and whether there is one. It does
// not allocate or sort.
func PlaceBest(req *Request, candidates []Candidate, p Plugin, seed uint64) (Choice, bool) {
	var best scored
	found := false
	var q query
	q.read(req)
	for i := range candidates {
		c := &candidates[i]
		if q.stageOf(c) != fit {
			continue
		}
		if k := q.scoreOf(c, p, seed); !found || k.compare(best) < 0 {
			best, found = k, true
		}
	}
	return Choice{ID: best.id, Score: best.score}, found
}

// top returns the first limit candidates of place's ranking.
func (q *query) top(candidates []Candidate, p Plugin, seed uint64, limit int) []Choice {
	var top []scored // the first limit entries are sorted if full
	prune := func() {
		slices.SortFunc(top, scored.compare)
		top = top[:min(len(top), limit)]
	}
	full := false // top[limit-1] is the last that can be in the result
	for i := range candidates {
		c := &candidates[i]
		q.setRow(i)
		if q.stageOf(c) != fit {
			continue
		}
		k := q.scoreOf(c, p, seed)
		if full && k.compare(top[limit-1]) > 0 {
			continue
		}
		if top = append(top, k); len(top) >= 2*limit {
			prune()
			full = true
		}
	}
	prune()
	return choices(top)
}

// scored is a candidate that fits, with the keys of the ranking.
type scored struct {
	id       string
	score    float64
	tiebreak uint64 // random number that decides between equal scores
}

func (q *query) scoreOf(c *Candidate, p Plugin, seed uint64) scored {
	return scored{id: c.ID, score: nanLowest(p.Score(q.facts(c))), tiebreak: tiebreakOf(seed, c.ID)}
}

// nanLowest replaces NaN by the lowest score, so that scores have a total order.
func nanLowest(score float64) float64 {
	if math.IsNaN(score) {
		return math.Inf(-1)
	}
	return score
}

// compare orders the best first. It is a total order over distinct ids.
func (a scored) compare(b scored) int {
	if c := cmp.Compare(b.score, a.score); c != 0 {
		return c
	}
	if c := cmp.Compare(a.tiebreak, b.tiebreak); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}
