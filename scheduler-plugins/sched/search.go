package sched

import (
	"cmp"
	"math"
)

// search finds the best candidate of a table.
type search struct {
	table     *Table
	q         *query
	plugin    Plugin
	facts     Facts
	lastRow   row     // the row that was scored last
	lastScore float64 // its score
	peers     bool    // the score depends on peers
	seed      uint64

	best     int // row
	score    float64
	tiebreak uint64
	found    bool

	needCPU, needMemory int64   // minimum that must be free
	labelled            bool    // labels may exclude nodes
	unlabelled          verdict // on nodes without labels
	someExcluded        bool    // some rows are barred
	allExcluded         bool    // all rows are barred
	needsOther          bool    // disk or bandwidth is requested
	needsCandidate      bool    // devices or ports are requested, which are not in rows
	capped              bool    // the table's ceilings apply
	boundsDistance      bool    // see query.boundsDistance
	boundsLocation      bool    // see query.distance
}

func (s *search) run() {
	t, q := s.table, s.q
	s.needCPU, s.needMemory = minFree(q.Needs.MilliCPU), minFree(q.Needs.MemoryMB)
	s.needsOther = q.Needs.StorageMB > 0 || q.Needs.InMbit > 0 || q.Needs.OutMbit > 0
	s.needsCandidate = len(q.Devices) > 0 || len(q.Ports) > 0
	s.boundsDistance = q.boundsDistance()
	s.boundsLocation = q.boundsLocation()
	s.labelled = len(q.Labels) > 0
	s.lastRow.capacityCPU = math.NaN() // equal to no row
	s.facts = Facts{req: q.Request, Rest: 1, Margin: 1, Fresh: 1, Bounded: s.boundsDistance}
	if only := cmp.Or(q.VolumeAt, q.TogetherAt); only != "" {
		if i, ok := t.at[only]; ok && (q.TogetherAt == "" || q.TogetherAt == only) {
			s.evaluate(i)
		}
		return
	}
	if q.VolumeKeys != "" {
		for _, id := range q.VolumeIn {
			if i, ok := t.at[id]; ok {
				s.evaluate(i)
			}
		}
		return
	}
	if len(q.Nodes) > 0 {
		s.evaluateNamed()
		return
	}
	q.checkKinds(&t.kinds)
	s.exclude()
	for i, limit := range t.ceilings {
		if s.capped && s.found && limit < s.score {
			continue
		}
		r := &t.rows[i]
		if r.kind < kindFirst {
			if r.kind == kindOther {
				s.evaluate(i)
			}
			continue
		}
		if t.kinds.all[r.kind-kindFirst].verdict == no || r.freeCPU < s.needCPU || r.freeMemory < s.needMemory ||
			s.someExcluded && (s.allExcluded || t.excluded[i] == t.round) || s.labelled && !s.matches(r.labels) {
			continue
		}
		s.scoreRow(i, r)
	}
}

// matches reports whether nodes with a label set match. It caches the verdict.
func (s *search) matches(set uint32) bool {
	v := &s.unlabelled
	var labels map[string]string
	if set > 0 {
		shared := &s.table.labels.all[set-1]
		v, labels = &shared.verdict, shared.value
	}
	if *v == unknown {
		*v = no
		if s.q.checkLabels(labels) {
			*v = yes
		}
	}
	return *v == yes
}

// minFree returns how much must be free for a need. A need of 0 is met even on an overbooked
// candidate.
func minFree(need int64) int64 {
	if need <= 0 {
		return math.MinInt64
	}
	return need
}

// evaluateNamed considers the nodes that the request names, and all candidates that are not nodes.
func (s *search) evaluateNamed() {
	for _, id := range s.q.Nodes {
		if i, ok := s.table.at[id]; ok && s.table.cands[i].Level == Nodes {
			s.evaluate(i)
		}
	}
	for i := range s.table.rows {
		if s.table.cands[i].Level != Nodes {
			s.evaluate(i)
		}
	}
}

// evaluate filters and scores a candidate as Place does.
func (s *search) evaluate(i int) {
	c := &s.table.cands[i]
	s.q.row = i + 1
	if s.q.stageOf(c) != fit {
		return
	}
	s.consider(i, nanLowest(s.plugin.Score(s.q.facts(c))))
}

// exclude marks the nodes that the request avoids or whose domain is full.
func (s *search) exclude() {
	t := s.table
	mark := func(id string) {
		if i, ok := t.at[id]; ok {
			t.excluded[i] = t.round
			s.someExcluded = true
		}
	}
	if t.round++; t.round == 0 { // once in four thousand million decisions
		clear(t.excluded)
		t.round = 1
	}
	for _, id := range s.q.Avoid {
		mark(id)
	}
	for i := range s.q.Domains {
		switch d := &s.q.Domains[i]; d.By {
		case "node":
			mark(d.Name)
		case "cluster":
			s.someExcluded, s.allExcluded = true, true // it is the candidates' own cluster
		default:
			s.labelled = true
		}
	}
	if s.labelled {
		s.q.resetLabelVerdicts(&t.labels)
	}
}

// scoreRow scores a node that passed the checks of its row.
func (s *search) scoreRow(i int, r *row) {
	t, q, f := s.table, s.q, &s.facts
	if s.needsOther && resourceStage(q.Needs, t.free[i]) != fit {
		return
	}
	if s.needsCandidate {
		if c := &t.cands[i]; missingDevice(q.Devices, Nodes, &c.Slots[0]) >= 0 || unavailablePort(q.Request, c) != (Port{}) {
			return
		}
	}
	if s.boundsLocation {
		p := &t.positions[i]
		q.row = i + 1
		if !q.nodeMeetsZones(p) || !q.nodeMeetsRTT(t.cands[i].ID, p) {
			return
		}
		if s.boundsDistance {
			f.Margin = q.margin(t.cands[i].ID, p)
		}
	}
	if s.needsOther {
		f.Rest = q.rest(&t.cands[i])
	}
	if !s.needsOther && !s.boundsDistance && !s.peers && r.scoresAs(&s.lastRow) {
		s.consider(i, s.lastScore) // in a burst, many nodes are alike
		return
	}
	f.CPU = fraction(r.restCPU-q.Needs.MilliCPU, r.capacityCPU)
	f.Memory = fraction(r.restMemory-q.Needs.MemoryMB, r.capacityMemory)
	f.id = t.cands[i].ID
	s.lastScore = nanLowest(s.plugin.Score(*f))
	s.lastRow = *r
	s.consider(i, s.lastScore)
}

// consider makes candidate i the best if its score wins.
func (s *search) consider(i int, score float64) {
	if s.found && score < s.score {
		return
	}
	lot := mix(s.table.rows[i].tiebreakBase ^ s.seed)
	if s.found && score == s.score {
		if lot > s.tiebreak || lot == s.tiebreak && s.table.cands[i].ID >= s.table.cands[s.best].ID {
			return
		}
	}
	s.best, s.score, s.tiebreak, s.found = i, score, lot, true
}
