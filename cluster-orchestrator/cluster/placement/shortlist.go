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

// matches reports whether the list is for instances that need the same; if not, it is for
// them from now on and empty.
func (s *shortlist) matches(in *instance) bool {
	service, rev, claim := in.id().Service(), in.Want.SpecRev, in.demand.takes.Claim
	if s.service == service && s.rev == rev && s.claim.Equal(claim) {
		return true
	}
	*s = shortlist{service: service, rev: rev, claim: claim}
	return false
}

// best returns the best node for a request that the list matches, if there is one, and
// whether that can be told from the list.
func (s *shortlist) best(t *sched.Table, req *sched.Request, p sched.Plugin, seed uint64) (choice sched.Choice, ok, known bool) {
	for range 2 {
		if s.cands != nil {
			choice, ok = sched.PlaceBest(req, s.cands, p, seed)
			if s.all || ok && choice.Score >= s.bound {
				return choice, ok, true
			}
		}
		ranked := t.Top(req, p, seed, shortLength+1)
		n := min(len(ranked), shortLength)
		s.cands, s.at, s.all = make([]sched.Candidate, n), make(map[string]int, n), n == len(ranked)
		for i, choice := range ranked[:n] {
			s.cands[i], s.at[choice.ID] = *t.Get(choice.ID), i
		}
		if !s.all {
			s.bound = ranked[n].Score
		}
	}
	return choice, false, false
}

// put keeps the list current when a node's candidate changes. One that is not in it might
// be better now than any that is.
func (s *shortlist) put(cand *sched.Candidate) {
	if i, ok := s.at[cand.ID]; ok && s.cands != nil {
		s.cands[i] = *cand
		return
	}
	s.cands = nil
}
