package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const (
	shortLength = 256
	shortFrom   = 1000 // minimum number of nodes for which the shortlist is used
)

// shortlist caches the highest-ranked nodes for a burst of instances with equal requests, so
// that not every instance is compared with all nodes. The best node of the list is the best
// of all nodes while it scores at least bound and no other node has changed. Among nodes with
// equal scores the choice may differ from the choice from all nodes.
type shortlist struct {
	service api.ServiceID
	rev     api.Revision
	claim   account.Claim

	cands []sched.Candidate // nil: the list must be filled
	at    map[string]int    // index in cands
	bound float64           // score of the best node that is not in the list
	all   bool              // the list has all nodes that fit
}

// plain reports whether an instance's request depends neither on the places of other
// instances nor on its own earlier placements.
func (in *instance) plain() bool {
	d := &in.demand
	return in.Node == "" && !in.boundByVolumes() && len(in.avoid)+len(d.sla.Links)+len(d.sla.Spreads)+len(d.sla.AntiAffinities)+len(d.takes.Claim.Devices)+len(in.Desired.Targets) == 0
}

// matches reports whether the list is for instances with the same request. If not, it is
// reset for them.
func (s *shortlist) matches(in *instance) bool {
	service, rev, claim := in.id().Service(), in.Desired.SpecRev, in.demand.takes.Claim
	if s.service == service && s.rev == rev && s.claim.Equal(claim) {
		return true
	}
	*s = shortlist{service: service, rev: rev, claim: claim}
	return false
}

// best returns the best node for a request that the list matches; ok is false if none fits.
// known is false if the list cannot tell.
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

// put updates the list after a node's candidate changed. A changed node that is not in the
// list might be better than all that are, so the list is discarded.
func (s *shortlist) put(cand *sched.Candidate) {
	if i, ok := s.at[cand.ID]; ok && s.cands != nil {
		s.cands[i] = *cand
		return
	}
	s.cands = nil
}
