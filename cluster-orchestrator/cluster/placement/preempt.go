package placement

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An urgent instance that fits nowhere may preempt less urgent ones, if the operator allows
// it. Its needs are reserved on the node until the preempted instances have stopped.

// maxEvictions bounds the nodes that are searched for instances to preempt. The nodes that
// the plugin ranks highest are searched.
const maxEvictions = 500

// tryPreempt preempts others for an instance on one of nodes, or on any node if there are none.
// It reports whether the instance waits for its reservation. An instance on a live node
// continues there meanwhile; an exclusive one cannot and does not preempt others.
func (m *Machine) tryPreempt(in *instance, req *sched.Request, nodes ...api.NodeID) bool {
	n := m.nodes[in.Node]
	runs := n != nil && !n.Silent
	if in.Move != nil || runs && (in.exclusive() || in.movesVolumes()) {
		return false
	}
	if in.Reserved == "" {
		k, ok := m.preemptOn(in, req, nodes...)
		if !ok {
			return false
		}
		if in.HandedBack && !in.NoBetterNode { // its place is reserved now
			in.HandedBack, in.why = false, nil
			m.changed(in)
		}
		if detail := "waits until leaving instances have stopped"; !runs {
			if k > 0 {
				detail = fmt.Sprintf("waits until %d preempted instances have stopped", k)
			}
			m.explain(in, api.ReasonNone, detail, nil)
		}
	}
	if n != nil && !runs {
		m.unassign(in, false)
		in.lostReason = in.Reason
	}
	return true
}

// preemptOn chooses a node with findVictims, reserves capacity there for the instance and
// preempts the victims. It returns their number. ok is false if there is no such node.
func (m *Machine) preemptOn(in *instance, req *sched.Request, nodes ...api.NodeID) (victims int, ok bool) {
	n, lesser := m.findVictims(in, req, nodes...)
	if n == nil {
		return 0, false
	}
	m.reserve(in, n)
	for _, v := range lesser {
		m.preempt(v)
	}
	for _, v := range lesser {
		m.tryPlace(v)
	}
	return len(lesser), true
}

// findVictims returns the node on which the fewest and least urgent instances must be
// preempted for an instance, and these instances. best is nil if there is none.
func (m *Machine) findVictims(in *instance, req *sched.Request, nodes ...api.NodeID) (best *node, victims []*instance) {
	if !m.mayPreempt(in) || m.preemptFail[in.id()] {
		return nil, nil
	}
	left := m.shareLeft(in)
	anyhow := withoutCapacity(*req)
	cands := m.table.All()
	if len(nodes) > 0 {
		cands = make([]sched.Candidate, len(nodes))
		for i, id := range nodes {
			cands[i] = *m.table.Get(string(id))
		}
	}
	ranked := sched.Place(&anyhow, cands, m.cfg.Plugin, in.seed()).Ranked
	for _, choice := range ranked[:min(len(ranked), maxEvictions)] {
		n := m.nodes[api.NodeID(choice.ID)]
		if n.leaving[in.id()] {
			continue // its own earlier placement is being stopped there
		}
		if v, ok := n.victims(in, left); ok && (best == nil || compareVictims(v, victims) < 0) {
			best, victims = n, v
		}
	}
	return best, victims
}

// mayPreempt reports whether an instance may preempt others and less urgent ones exist.
func (m *Machine) mayPreempt(in *instance) bool {
	lower := m.placed[:min(max(in.demand.request.Urgency, 0), len(m.placed))]
	return m.cfg.Preempt && m.settled && slices.ContainsFunc(lower, func(n int) bool { return n > 0 })
}

// victims returns the fewest and least urgent instances that must be preempted so that
// another fits on the node and into left, the rest of the root's share, once leaving
// instances have stopped. The result may be empty. ok is false if preemption does not help.
func (n *node) victims(in *instance, left *api.Resources) (victims []*instance, ok bool) {
	var may []*instance
	for _, v := range n.assigned {
		if v.demand.request.Urgency < in.demand.request.Urgency && !v.ended() && !linked(in, v) {
			may = append(may, v)
		}
	}
	slices.SortFunc(may, func(a, b *instance) int {
		return cmp.Or(
			cmp.Compare(a.demand.request.Urgency, b.demand.request.Urgency),
			cmp.Compare(n.account.LargestShare(b.id()), n.account.LargestShare(a.id())), // the larger first: few are needed
			cmp.Compare(a.id(), b.id()),
		)
	})
	gone := n.ending()
	if left != nil {
		others := left.Minus(n.account.Sum(gone))
		left = &others
	}
	takes := in.demand.takes
	takes.Claim = n.withoutVolumes(in.id(), takes.Claim)
	fits := func() bool {
		return n.account.FitsWithout(gone, takes, n.Info.Ports) &&
			(left == nil || takes.Claim.Resources.Fits(left.Plus(n.account.Sum(gone)).Max(api.Resources{})))
	}
	k := 0
	for ; k < len(may) && !fits(); k++ {
		gone[may[k].id()] = true
	}
	if !fits() {
		return nil, false
	}
	// Some of the first are not needed after later ones were added.
	out := may[:k]
	for i := k - 1; i >= 0; i-- {
		if delete(gone, may[i].id()); !fits() {
			gone[may[i].id()] = true
		}
	}
	return slices.DeleteFunc(out, func(v *instance) bool { return !gone[v.id()] }), true
}

// linked reports whether a link requires two instances to be near each other. Such an
// instance is not preempted, because without it the node might be too far away.
func linked(a, b *instance) bool {
	names := func(a, b *instance) bool {
		of, to := a.id().Service(), b.id().Service()
		return of != to && slices.ContainsFunc(a.demand.sla.Links, func(l sched.Link) bool { return l.Names(of, to) })
	}
	return names(a, b) || names(b, a)
}

// ending returns the instances that are leaving the node, except those that continue until
// their new placement runs.
func (n *node) ending() map[api.InstanceID]bool {
	out := make(map[api.InstanceID]bool, len(n.leaving))
	for id := range n.leaving {
		if _, goesOn := n.set.Kept(id); !goesOn {
			out[id] = true
		}
	}
	return out
}

// shareLeft returns what is left of the root's share once leaving instances have stopped. It
// returns nil if the share does not apply to the instance.
func (m *Machine) shareLeft(in *instance) *api.Resources {
	if !m.shares(in) || in.Node != "" {
		return nil
	}
	left := Scaled(m.capacity, m.cfg.Share).Minus(m.used)
	for _, n := range m.nodes {
		if len(n.leaving) > 0 && !n.Silent {
			left = left.Plus(n.account.Sum(n.ending()))
		}
	}
	return &left
}

func compareVictims(a, b []*instance) int {
	sum := func(of []*instance) (n int) {
		for _, v := range of {
			n += v.demand.request.Urgency
		}
		return n
	}
	return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(sum(a), sum(b)))
}

func (m *Machine) preempt(v *instance) {
	m.cancelQuestion(v)
	m.unassign(v, true)
	v.Moving, v.NoBetterNode, v.Violated, v.lostReason = false, false, "", api.ReasonPreempted
	if v.State != api.ClusterScheduled {
		v.State = lifecycle.Must(v.State, lifecycle.Replace)
	}
	v.Reason, v.Detail = api.ReasonPreempted, "a more urgent instance takes its place"
	m.changed(v)
}

func (m *Machine) reserve(in *instance, n *node) {
	m.unreserve(in)
	in.Reserved = n.Info.ID
	m.bookReservation(in, n)
	m.save(in)
	m.refresh(n)
	m.freedNodes[n.Info.ID] = true // leaving instances may have stopped just now
}

// bookReservation books a reservation. The instance already counts there for spread and
// anti-affinity.
func (m *Machine) bookReservation(in *instance, n *node) {
	if n.reserved == nil {
		n.reserved = map[api.InstanceID]*instance{}
	}
	n.reserved[in.id()] = in
	n.book(in.id(), in.demand.takes.Claim)
	n.account.Publish(in.id(), in.demand.takes.Ports)
	m.relations.Expect(in.id(), n.Info.ID)
}

func (m *Machine) unreserve(in *instance) {
	if in.Reserved == "" {
		return
	}
	n := m.nodes[in.Reserved]
	in.Reserved = ""
	m.giveUpMove(in)
	m.save(in)
	m.relations.Unexpect(in.id())
	if n == nil {
		return
	}
	delete(n.reserved, in.id())
	n.account.Release(in.id())
	m.refresh(n)
}

// useReservations places the instances with a reservation on the node if the capacity is free now. If
// the node no longer meets an instance's request for another reason, the instance is placed
// elsewhere.
func (m *Machine) useReservations(n *node) {
	if n.out() != "" {
		return
	}
	for _, id := range step.Keys(n.reserved) {
		in := n.reserved[id]
		switch {
		case in == nil: // an earlier iteration removed the reservation
		case in.Move != nil: // it is for the end of the move
		case m.otherwiseUnfit(in, n):
			m.preemptFail[id] = true
			m.unreserve(in)
			m.placeUnreserved(in)
		case in.awaitsEnd():
		case m.fits(in, n, n.without(id)):
			reason, detail := api.ReasonNone, "preempted instances have stopped"
			switch {
			case in.movesToReservation():
				reason, detail = api.ReasonMoved, requestedDetail
			case in.Moving:
				reason = api.ReasonDrained
			case in.Node != "":
				reason = api.ReasonViolated
			}
			if own := m.nodes[in.Node]; own != nil && !own.Silent && in.exclusive() && !m.mayDisrupt(in, reason, "") {
				m.changed(in)
				continue
			}
			m.assignOrMove(in, n.Info.ID, reason, detail)
		}
	}
}

// otherwiseUnfit reports whether the node of an instance's reservation does not meet its
// request for a reason other than capacity.
func (m *Machine) otherwiseUnfit(in *instance, n *node) bool {
	req := withoutCapacity(m.request(in))
	_, ok := sched.PlaceBest(&req, []sched.Candidate{n.candidate("", n.account.Left())}, m.cfg.Plugin, in.seed())
	return !ok && !m.latency.Measure(in.demand.users) // a user that is still being measured may be near
}

// withoutCapacity returns the request without the needs that preemption can free.
func withoutCapacity(req sched.Request) sched.Request {
	req.Needs, req.Devices, req.Ports, req.Address = api.Resources{}, nil, nil, false
	return req
}

// awaitsReservation reports whether an instance waits for the capacity that is reserved for it.
func (m *Machine) awaitsReservation(in *instance) bool {
	n := m.nodes[in.Reserved]
	otherwiseUnfit := n != nil && n.out() == "" && m.otherwiseUnfit(in, n)
	if otherwiseUnfit {
		m.preemptFail[in.id()] = true
	}
	if n == nil || n.Closed() || otherwiseUnfit {
		m.unreserve(in)
		return false
	}
	m.useReservations(n)
	return in.Reserved != ""
}

// dropReservations removes the reservations on a node that takes no work any more and places their
// instances elsewhere.
func (m *Machine) dropReservations(n *node) {
	for _, id := range step.Keys(n.reserved) {
		in := n.reserved[id]
		if own := m.nodes[in.Node]; own != nil && !own.Silent && in.Move.Holds() && in.Move.Reason == api.ReasonMoved {
			m.endRequestedMove(in)
			continue
		}
		m.unreserve(in)
		m.placeUnreserved(in)
	}
}

// placeUnreserved finds another place for an instance that lost its reservation.
func (m *Machine) placeUnreserved(in *instance) {
	own := m.nodes[in.Node]
	switch {
	case own == nil:
		m.tryPlace(in)
	case in.Moving && !own.Silent:
		m.evict(in)
	} // violated SLAs are checked again periodically, and instances of silent nodes are displaced
}
