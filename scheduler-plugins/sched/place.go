package sched

import (
	"cmp"
	"math"
	"slices"
)

// Place ranks the candidates that fit, best first, and says of each other one
// which constraint ruled it out. Candidates of equal score are ordered by the
// seed, so that a burst of equal requests spreads and each answer replays.
// Nothing that it is given is kept or changed.
func Place(req *Request, candidates []Candidate, p Plugin, seed uint64) Result {
	var q query
	q.read(req)
	return q.place(candidates, p, seed)
}

func (q *query) place(candidates []Candidate, p Plugin, seed uint64) (res Result) {
	fits := make([]contender, 0, len(candidates))
	for i := range candidates {
		c := &candidates[i]
		q.at(i)
		if stage := q.stageOf(c); stage != fit {
			res.Rejected = append(res.Rejected, q.reject(c, stage))
			continue
		}
		fits = append(fits, q.enter(c, p, seed))
	}
	slices.SortFunc(fits, contender.compare)
	res.Ranked = make([]Choice, len(fits))
	for i, f := range fits {
		res.Ranked[i] = Choice{ID: f.id, Score: f.score}
	}
	return res
}

// PlaceBest is the first of Place's ranking, and whether there is one. It
// allocates nothing and sorts nothing: what the hot path asks.
func PlaceBest(req *Request, candidates []Candidate, p Plugin, seed uint64) (Choice, bool) {
	var best contender
	found := false
	var q query
	q.read(req)
	for i := range candidates {
		c := &candidates[i]
		if q.stageOf(c) != fit {
			continue
		}
		if k := q.enter(c, p, seed); !found || k.compare(best) < 0 {
			best, found = k, true
		}
	}
	return Choice{ID: best.id, Score: best.score}, found
}

// PlaceTop are the first of Place's ranking, at most so many: what is asked where
// nobody wants to know of the others.
func PlaceTop(req *Request, candidates []Candidate, p Plugin, seed uint64, most int) []Choice {
	var q query
	q.read(req)
	return q.top(candidates, p, seed, most)
}

func (q *query) top(candidates []Candidate, p Plugin, seed uint64, most int) []Choice {
	var top []contender // of which those after the first so many may be no better
	prune := func() {
		slices.SortFunc(top, contender.compare)
		top = top[:min(len(top), most)]
	}
	full := false // top[most-1] is the last of so many
	for i := range candidates {
		c := &candidates[i]
		q.at(i)
		if q.stageOf(c) != fit {
			continue
		}
		k := q.enter(c, p, seed)
		if full && k.compare(top[most-1]) > 0 {
			continue
		}
		if top = append(top, k); len(top) >= 2*most {
			prune()
			full = true
		}
	}
	prune()
	out := make([]Choice, len(top))
	for i, k := range top {
		out[i] = Choice{ID: k.id, Score: k.score}
	}
	return out
}

// contender is a candidate that fits, on its way into the ranking.
type contender struct {
	id    string
	score float64
	lot   uint64 // what decides among equal scores
}

func (q *query) enter(c *Candidate, p Plugin, seed uint64) contender {
	var score float64
	if r, ok := p.(Reckoner); ok {
		score = r.Reckon(q.facts(c))
	} else {
		score = p.Score(q.Request, c)
	}
	return contender{id: c.ID, score: reckoned(score), lot: draw(seed, c.ID)}
}

// reckoned is a score that can be compared: a plugin's slip must not make the
// order depend on the input's.
func reckoned(score float64) float64 {
	if math.IsNaN(score) {
		return math.Inf(-1)
	}
	return score
}

// compare orders best first and is total over distinct ids.
func (a contender) compare(b contender) int {
	if c := cmp.Compare(b.score, a.score); c != 0 {
		return c
	}
	if c := cmp.Compare(a.lot, b.lot); c != 0 {
		return c
	}
	return cmp.Compare(a.id, b.id)
}
