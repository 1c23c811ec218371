package placement

import (
	"cmp"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// waitingByUrgency returns the waiting instances: the most urgent first, and among equals the one that
// has waited longest.
func (m *Machine) waitingByUrgency() []api.InstanceID {
	ids := m.waiting.List()
	var by [account.Urgencies + 1][]api.InstanceID // by urgency+1; 0: removed instances
	for _, id := range ids {
		u := min(max(m.urgency(id), -1), account.Urgencies-1) + 1
		by[u] = append(by[u], id)
	}
	slices.Reverse(by[:])
	return slices.Concat(by[:]...)
}

func (m *Machine) urgency(id api.InstanceID) int {
	if in := m.instances[id]; in != nil {
		return in.demand.request.Urgency
	}
	return -1
}

// Retry places waiting instances on the capacity that this step has freed.
func (m *Machine) Retry() {
	for len(m.freedNodes)+len(m.endedOld)+len(m.lapsedNodes) > 0 || m.relations.HasDepartures() || m.shareGrew {
		lapsed := m.lapsedNodes
		m.lapsedNodes = nil
		for _, id := range lapsed {
			if n := m.nodes[id]; n != nil && n.Closed() {
				m.dropReservations(n)
			}
		}
		ids := step.Keys(m.freedNodes)
		clear(m.freedNodes)
		vacated := m.endedOld
		m.endedOld = map[api.InstanceID]bool{}
		seen, tried := m.version, map[noFit]bool{}
		cands := make([]sched.Candidate, len(ids))
		for i, id := range ids {
			cands[i] = *m.table.Get(string(id))
		}
		for _, id := range ids {
			m.useReservations(m.nodes[id])
		}
		for _, id := range m.waitingByUrgency() {
			in := m.instances[id]
			if in == nil {
				m.waiting.Remove(id)
				continue
			}
			if vacated[id] { // it may fit on any node, not only on those that have more free
				m.retryAnywhere(in)
				continue
			}
			kind := noFit{in.id().Service(), in.Desired.SpecRev, m.version}
			if in.likeSiblings() && tried[kind] && !m.shares(in) {
				continue
			}
			// Earlier placements took capacity of the grown nodes.
			if seen != m.version {
				seen = m.version
				for i := range cands {
					cands[i] = *m.table.Get(cands[i].ID)
				}
			}
			m.retry(in, cands)
			tried[kind] = tried[kind] || in.likeSiblings() && !m.asks.Pending(in.id()) && m.waiting.Has(id)
		}
		if m.cfg.Preempt {
			m.retryUrgent(ids)
		}
		if m.relations.HasDepartures() {
			m.retryKeptOut()
		}
		if m.shareGrew {
			m.shareGrew = false
			m.retryAboveShare()
		}
	}
}

// retryUrgent preempts others for the instances that still wait, on nodes that have more free
// than before. On other nodes, preemption did not help earlier and does not help now.
func (m *Machine) retryUrgent(nodes []api.NodeID) {
	if len(nodes) == 0 {
		return
	}
	tried := map[noFit]bool{}
	for _, id := range m.waitingByUrgency() {
		in := m.instances[id]
		switch {
		case in == nil:
			continue
		case !m.mayPreempt(in):
			return // nor may the following ones, which are less urgent
		case in.AwaitsOffer, in.Leaving, in.Withdrawn, in.GivenUp, in.ended(),
			m.asks.Pending(in.id()), in.Reserved != "", in.awaitsEnd():
			continue
		}
		kind := noFit{service: in.id().Service(), rev: in.Desired.SpecRev}
		if in.likeSiblings() && tried[kind] {
			continue
		}
		var own []string
		if in.Node != "" {
			own = []string{string(in.Node)}
		}
		req := m.request(in, own...)
		tried[kind] = !m.tryPreempt(in, &req, nodes...) && in.likeSiblings()
	}
}

// retryKeptOut retries instances that spread or anti-affinity kept out of a domain which
// another instance has left. They may fit on any node of the domain.
func (m *Machine) retryKeptOut() {
	kept := m.relations.KeptOut()
	if len(kept) == 0 {
		return
	}
	var none noFit
	for _, id := range m.waitingByUrgency() {
		if in := m.instances[id]; in != nil && kept[id.Service()] && !none.matches(m, in) {
			m.retryAnywhere(in)
			none.record(m, in)
		}
	}
}

// noFit identifies the instances of one service that fit nowhere. While no candidate
// changes, the others need not be tried.
type noFit struct {
	service api.ServiceID
	rev     api.Revision
	version uint64 // of the table
}

func (f *noFit) record(m *Machine, in *instance) {
	if *f = (noFit{}); m.settled && in.likeSiblings() && m.waiting.Has(in.id()) {
		*f = noFit{in.id().Service(), in.Desired.SpecRev, m.version}
	}
}

func (f *noFit) matches(m *Machine, in *instance) bool {
	return in.likeSiblings() && *f == noFit{in.id().Service(), in.Desired.SpecRev, m.version}
}

// likeSiblings reports whether the instance fits where other instances of its service fit.
func (in *instance) likeSiblings() bool {
	return in.Node == "" && in.Reserved == "" && !in.boundByVolumes() && len(in.avoid)+len(in.OldPlacements)+len(in.Desired.Targets) == 0
}

// retryAboveShare retries instances that no longer exceed the root's share. They may fit on any
// node. A report is sent at once, because the root must offer handed-back exclusive instances
// again.
func (m *Machine) retryAboveShare() {
	ids := step.Keys(m.aboveShare)
	slices.SortStableFunc(ids, func(a, b api.InstanceID) int { return cmp.Compare(m.urgency(b), m.urgency(a)) })
	for _, id := range ids {
		in := m.instances[id]
		if in == nil || in.Node != "" || in.Leaving || in.Withdrawn {
			delete(m.aboveShare, id)
			continue
		}
		if m.explainOverShare(in) == nil {
			delete(m.aboveShare, id)
			m.changes.Report = true
			m.tryPlace(in)
		}
	}
}

// retry places a waiting instance on one of the nodes of grown if it fits there.
func (m *Machine) retry(in *instance, grown []sched.Candidate) {
	if in.AwaitsOffer || in.Leaving || in.Withdrawn || in.ended() {
		m.waiting.Remove(in.id())
		return
	}
	if m.asks.Pending(in.id()) || in.awaitsEnd() || in.Move != nil || in.movesToReservation() {
		return
	}
	if in.Moving && in.Node != "" && in.movesVolumes() {
		m.beginMove(in, api.ReasonDrained)
		return
	}
	if in.lostReason == api.ReasonDrained && m.beginMoveStopped(in) {
		return
	}
	if lost := m.nodes[in.Node]; in.hasKept() && (lost == nil || lost.Silent) && m.returnToKept(in) {
		return
	}
	needs := m.needs(in.requestInput())
	if !slices.ContainsFunc(grown, func(cand sched.Candidate) bool {
		return cand.Out == "" && needs.Fits(cand.Free.Max(api.Resources{}))
	}) {
		return // most waiting instances are too large for what was freed
	}
	if in.Node == "" && m.rejectOverShare(in) != nil {
		m.aboveShare[in.id()] = true // retried when the share has more free
		return
	}
	if in.Node == "" && m.tooLarge(in) != nil {
		return
	}
	req := m.request(in)
	if in.Node != "" {
		req.Avoid = append(req.Avoid, string(in.Node))
	}
	best, ok := sched.PlaceBest(&req, grown, m.cfg.Plugin, in.seed())
	switch {
	case !ok || !m.devicesFit(&req, best.ID):
	case in.Moving && in.Node != "" && in.exclusive() && !m.mayDisrupt(in, api.ReasonDrained, ""):
		m.awaitDisruption(in)
	case in.Moving && in.exclusive() && in.Node != "":
		m.breakBeforeMake(in, api.ReasonDrained)
	case in.Moving && in.Node != "":
		m.decide(in, &req, api.NodeID(best.ID), api.ReasonDrained)
	default:
		m.decide(in, &req, api.NodeID(best.ID), in.lostReason)
	}
}
