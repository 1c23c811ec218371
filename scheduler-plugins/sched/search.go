package sched

import "math"

// search finds the best candidate of a table.
type search struct {
	table  *Table
	q      *query
	plugin Plugin
	facts  Facts
	like   row     // the row that was scored last
	was    float64 // its score
	peers  bool    // the score depends on peers
	seed   uint64

	best  int // row
	score float64
	lot   uint64
	found bool

	needCPU, needMemory int64   // minimum that must be free
	labelled            bool    // labels may exclude nodes
	unlabelled          verdict // on nodes without labels
	barring             bool    // some rows are barred
	none                bool    // all rows are barred
	more                bool    // disk or bandwidth is requested
	looking             bool    // devices or ports are requested, which are not in rows
	capped              bool    // the table's ceilings apply
	bounded             bool    // see query.bounded
	far                 bool    // see query.far
}

func (s *search) run() {
	t, q := s.table, s.q
	s.needCPU, s.needMemory = least(q.Needs.MilliCPU), least(q.Needs.MemoryMB)
	s.more = q.Needs.StorageMB > 0 || q.Needs.InMbit > 0 || q.Needs.OutMbit > 0
	s.looking = len(q.Devices) > 0 || len(q.Ports) > 0
	s.bounded = q.bounded()
	s.far = q.far()
	s.labelled = len(q.Labels) > 0
	s.like.capacityCPU = math.NaN() // equal to no row
	s.facts = Facts{req: q.Request, Rest: 1, Margin: 1, Fresh: 1, Bounded: s.bounded}
	if len(q.Nodes) > 0 {
		s.named()
		return
	}
	q.judge(&t.kinds)
	s.bar()
	for i, limit := range t.ceilings {
		if s.capped && s.found && limit < s.score {
			continue
		}
		r := &t.rows[i]
		if r.kind < kindFirst {
			if r.kind == kindOther {
				s.ask(i)
			}
			continue
		}
		if t.kinds.all[r.kind-kindFirst].verdict == no || r.freeCPU < s.needCPU || r.freeMemory < s.needMemory ||
			s.barring && (s.none || t.barred[i] == t.turn) || s.labelled && !s.matches(r.labels) {
			continue
		}
		s.weigh(i, r)
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
		if s.q.judgeLabels(labels) {
			*v = yes
		}
	}
	return *v == yes
}

// least returns how much must be free for a need. A need of 0 is met even on an overbooked
// candidate.
func least(need int64) int64 {
	if need <= 0 {
		return math.MinInt64
	}
	return need
}

// named considers the nodes that the request names, and all candidates that are not nodes.
func (s *search) named() {
	for _, id := range s.q.Nodes {
		if i, ok := s.table.at[id]; ok && s.table.cands[i].Level == Nodes {
			s.ask(i)
		}
	}
	for i := range s.table.rows {
		if s.table.cands[i].Level != Nodes {
			s.ask(i)
		}
	}
}

// ask filters and scores a candidate as Place does.
func (s *search) ask(i int) {
	c := &s.table.cands[i]
	s.q.row = i + 1
	if s.q.stageOf(c) != fit {
		return
	}
	s.enter(i, ordered(s.plugin.Score(s.q.facts(c))))
}

// bar marks the nodes that the request avoids or whose domain is full.
func (s *search) bar() {
	t := s.table
	mark := func(id string) {
		if i, ok := t.at[id]; ok {
			t.barred[i] = t.turn
			s.barring = true
		}
	}
	if t.turn++; t.turn == 0 { // once in four thousand million decisions
		clear(t.barred)
		t.turn = 1
	}
	for _, id := range s.q.Avoid {
		mark(id)
	}
	for i := range s.q.Domains {
		switch d := &s.q.Domains[i]; d.By {
		case "node":
			mark(d.Name)
		case "cluster":
			s.barring, s.none = true, true // it is the candidates' own cluster
		default:
			s.labelled = true
		}
	}
	if s.labelled {
		s.q.forget(&t.labels)
	}
}

// weigh scores a node that passed the checks of its row.
func (s *search) weigh(i int, r *row) {
	t, q, f := s.table, s.q, &s.facts
	if s.more && lackStage(q.Needs, t.free[i]) != fit {
		return
	}
	if s.looking {
		if c := &t.cands[i]; short(q.Devices, Nodes, &c.Rooms[0]) >= 0 || taken(q.Request, c) != (Port{}) {
			return
		}
	}
	if s.far {
		p := &t.spots[i]
		q.row = i + 1
		if !q.nodeInZones(p) || !q.nodeInReach(t.cands[i].ID, p) {
			return
		}
		if s.bounded {
			f.Margin = q.margin(t.cands[i].ID, p)
		}
	}
	if s.more {
		f.Rest = q.rest(&t.cands[i])
	}
	if !s.more && !s.bounded && !s.peers && r.like(&s.like) {
		s.enter(i, s.was) // in a burst, many nodes are alike
		return
	}
	f.CPU = part(r.restCPU-q.Needs.MilliCPU, r.capacityCPU)
	f.Memory = part(r.restMemory-q.Needs.MemoryMB, r.capacityMemory)
	f.id = t.cands[i].ID
	s.was = ordered(s.plugin.Score(*f))
	s.like = *r
	s.enter(i, s.was)
}

// enter makes candidate i the best if its score wins.
func (s *search) enter(i int, score float64) {
	if s.found && score < s.score {
		return
	}
	lot := mix(s.table.rows[i].lot ^ s.seed)
	if s.found && score == s.score {
		if lot > s.lot || lot == s.lot && s.table.cands[i].ID >= s.table.cands[s.best].ID {
			return
		}
	}
	s.best, s.score, s.lot, s.found = i, score, lot, true
}
