package sched

import "math"

// search is one decision over a table.
type search struct {
	table  *Table
	q      *query
	plugin Reckoner
	facts  Facts
	seed   uint64

	best  int // row
	score float64
	lot   uint64
	found bool

	needCPU, needMemory int64 // the least that must be free
	labelled            bool  // labels decide
	unlabelled          verdict
	barring             bool // some rows are barred
	none                bool // all of them are
	looking             bool // what is asked is in the candidate alone
	bounded             bool
	far                 bool // bounds or zones may rule out
}

func (s *search) run() {
	t, q := s.table, s.q
	s.needCPU, s.needMemory = least(q.Needs.MilliCPU), least(q.Needs.MemoryMB)
	s.looking = len(q.Devices) > 0 || len(q.Ports) > 0 || q.Needs.StorageMB > 0 || q.Needs.InMbit > 0 || q.Needs.OutMbit > 0
	s.bounded = q.bounded()
	s.far = q.far()
	s.labelled = len(q.Labels) > 0
	s.facts = Facts{req: q.Request, Rest: 1, Margin: 1, Fresh: 1, Bounded: s.bounded}
	if len(q.Nodes) > 0 {
		s.named()
		return
	}
	q.judge(&t.kinds)
	s.bar()
	for i := range t.rows {
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

// matches reports whether nodes of the label set match, judging it if nobody did.
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

// least is what must be free where something is needed; who needs nothing lacks
// nothing, even of a candidate that is booked over.
func least(need int64) int64 {
	if need <= 0 {
		return math.MinInt64
	}
	return need
}

// named asks those alone that the request names, and others than nodes.
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

// ask looks at a candidate as Place does.
func (s *search) ask(i int) {
	c := &s.table.cands[i]
	if s.q.stageOf(c) != fit {
		return
	}
	was := s.facts
	s.facts = s.q.facts(c)
	s.enter(i)
	s.facts = was
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
			s.barring, s.none = true, true // the core names its own cluster alone
		default:
			s.labelled = true
		}
	}
	if s.labelled {
		s.q.forget(&t.labels)
	}
}

// weigh enters a node that passed all that is in its row.
func (s *search) weigh(i int, r *row) {
	t, q, f := s.table, s.q, &s.facts
	if s.looking {
		c := &t.cands[i]
		if short(q.Devices, Nodes, &c.Rooms[0]) >= 0 || lackStage(q.Needs, available(c, &c.Rooms[0])) != fit || taken(q.Request, c) != (Port{}) {
			return
		}
		f.Rest = q.rest(c)
	}
	if s.far {
		p := &t.spots[i]
		if !q.nodeInZones(p) || !q.nodeInReach(t.cands[i].ID, &p.latent) {
			return
		}
		if s.bounded {
			f.Margin = q.margin(t.cands[i].ID, p)
		}
	}
	f.CPU = part(r.restCPU-q.Needs.MilliCPU, r.capacityCPU)
	f.Memory = part(r.restMemory-q.Needs.MemoryMB, r.capacityMemory)
	s.enter(i)
}

// enter lets candidate i, whose facts are known, compete.
func (s *search) enter(i int) {
	f := &s.facts
	f.id = s.table.cands[i].ID
	score := reckoned(s.plugin.Reckon(*f))
	lot := mix(s.table.rows[i].lot ^ s.seed)
	if s.found && (score < s.score || score == s.score && (lot > s.lot || lot == s.lot && f.id >= s.table.cands[s.best].ID)) {
		return
	}
	s.best, s.score, s.lot, s.found = i, score, lot, true
}
