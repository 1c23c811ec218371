package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// A burst of instances that ask for the same need not be compared with all nodes
// one by one. The nodes that the plugin likes best are kept at hand; as long as the
// best of them scores no less than the best of all others did, and of those none has
// changed, it is the best of all. Only among equal scores the choice may be another
// than the whole table's, and by chance as well.

const (
	shortLength = 256
	shortFrom   = 1000 // nodes from which on it is worth it
)

type shortlist struct {
	service api.ServiceID
	rev     api.Revision
	claim   account.Claim

	cands []sched.Candidate // nil: there is none
	at    map[string]int
	bound float64 // the score of the best that is not in it
	all   bool    // it has all that fit
}

// plain reports whether an instance asks for nothing that hangs on others' places
// or on its own earlier ones.
func (in *instance) plain() bool {
	d := &in.demand
	return in.Node == "" && len(in.avoid)+len(d.sla.Links)+len(d.sla.Spreads)+len(d.sla.AntiAffinities)+len(d.takes.Claim.Devices)+len(in.Want.Targets) == 0
}

// fromShortlist is the best node for an instance that asks for the same as the
// one before, if there is one, and whether that can be told from the list.
func (m *Machine) fromShortlist(in *instance, req *sched.Request) (choice sched.Choice, ok, told bool) {
	s := &m.short
	if len(m.nodes) < shortFrom || !in.plain() || len(req.Avoid)+len(req.Bounds)+len(req.Domains) > 0 {
		return choice, false, false
	}
	if s.service != in.id().Service() || s.rev != in.Want.SpecRev || !s.claim.Equal(in.demand.takes.Claim) {
		*s = shortlist{service: in.id().Service(), rev: in.Want.SpecRev, claim: in.demand.takes.Claim}
		return choice, false, false
	}
	for range 2 {
		if s.cands != nil {
			choice, ok = sched.PlaceBest(req, s.cands, m.cfg.Plugin, in.seed())
			if s.all || ok && choice.Score >= s.bound {
				return choice, ok, true
			}
		}
		m.fillShortlist(req, in.seed())
	}
	return choice, false, false
}

func (m *Machine) fillShortlist(req *sched.Request, seed uint64) {
	s := &m.short
	ranked := m.table.Top(req, m.cfg.Plugin, seed, shortLength+1)
	n := min(len(ranked), shortLength)
	s.cands, s.at, s.all = make([]sched.Candidate, n), make(map[string]int, n), n == len(ranked)
	for i, choice := range ranked[:n] {
		s.cands[i], s.at[choice.ID] = *m.table.Get(choice.ID), i
	}
	if !s.all {
		s.bound = ranked[n].Score
	}
}

// listed keeps the shortlist current when a node's candidate changes. One that is
// not in it might be better now than any that is.
func (m *Machine) listed(cand *sched.Candidate) {
	s := &m.short
	if s.cands == nil {
		return
	}
	if i, ok := s.at[cand.ID]; ok {
		s.cands[i] = *cand
		return
	}
	s.cands = nil
}
