package placement

import (
	"fmt"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/violations"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// spareMargin is the fraction of a bound that a better placement must leave unused.
const spareMargin = 0.1

// slaApplies reports whether violations of an instance's SLA count at present.
func (m *Machine) slaApplies(in *instance) bool {
	n := m.nodes[in.Node]
	return n != nil && !n.Silent && !in.Leaving && !in.Withdrawn && !in.ended() && !m.asks.Pending(in.id())
}

// Check returns the breach of an instance's placement, its epoch, and the violation that is
// shown now. ok is false if violations do not count now, for example while the instance is
// leaving.
func (m *Machine) Check(id api.InstanceID) (b violations.Breach, e api.Epoch, shown string, ok bool) {
	in := m.instances[id]
	if in == nil || !m.slaApplies(in) {
		return b, 0, "", false
	}
	return m.violation(in, m.nodes[in.Node]), in.Epoch, in.Violated, true
}

// SetViolated stores what the instance's placement violates; empty means nothing. show
// means that the root and the user interfaces get the text.
func (m *Machine) SetViolated(id api.InstanceID, text string, show bool) {
	in := m.instances[id]
	switch {
	case text == "":
		if !in.Moving {
			m.unreserve(in)
		}
		if in.Disruption.waits() && in.Disruption.Reason == api.ReasonViolated {
			in.Disruption = nil
			m.changed(in)
		}
		if show || in.NoBetterNode {
			in.Violated = ""
			in.endRootSearch()
			m.changed(in)
		}
	case show:
		in.Violated = text
		m.changed(in)
	}
}

// Recheck prepares a periodic check of a placement and returns its epoch. An instance
// without a node is retried instead if a position that its links depend on has changed;
// placed is false then.
func (m *Machine) Recheck(id api.InstanceID) (e api.Epoch, placed bool) {
	in := m.instances[id]
	if in == nil {
		return 0, false
	}
	if in.Node != "" {
		m.latency.Measure(in.demand.users)
		return in.Epoch, true
	}
	if now := m.relations.LastMove(id); in.positions != now {
		in.positions = now
		m.retryAnywhere(in)
	}
	return 0, false
}

// endRootSearch ends the root's search for a better place.
func (in *instance) endRootSearch() {
	if in.NoBetterNode {
		in.NoBetterNode, in.HandedBack, in.why = false, in.Moving && !in.exclusive(), nil
	}
}

// violation returns the constraint that an instance's placement violates, or the zero
// Breach.
func (m *Machine) violation(in *instance, n *node) (worst violations.Breach) {
	req := in.demand.request
	// Of the needs, only bandwidth is checked: the node's may have fallen below what is booked.
	req.Needs, req.Devices, req.Ports, req.Address = api.Resources{InMbit: req.Needs.InMbit, OutMbit: req.Needs.OutMbit}, nil, nil, false
	if n.bandwidthUnknown > 0 {
		req.Needs = api.Resources{} // unknown bandwidth is no violation
	}
	req.Domains = m.relations.LabelViolations(in.id())
	cand := n.candidate("", n.account.Left())
	own := &cand.Slots[0]
	own.Free = n.account.Capacity().Plus(n.account.Booked(in.id()).Resources)
	for _, booked := range n.account.BookedByUrgency() {
		own.Free = own.Free.Minus(booked)
	}
	cand.Free, own.Largest = own.Free, own.Free
	broken := func() *api.Rejection {
		res := sched.Place(&req, []sched.Candidate{cand}, m.cfg.Plugin, 0)
		if len(res.Rejected) == 0 {
			return nil
		}
		return &res.Rejected[0]
	}
	if r := broken(); r != nil {
		borne, shared := sched.RigidnessOf(&in.Desired.Spec, r.Constraint)
		return violations.Breach{Text: breachText(r), Tolerated: borne, Shared: shared}
	}
	for _, l := range in.demand.sla.Links {
		b, binds := m.bound(in.id().Service(), l, in.Desired.Targets, in.Node)
		if !binds || b.Unknown != "" {
			continue
		}
		req.Bounds = []sched.Bound{b}
		if r := broken(); r != nil && (worst.Text == "" || l.Rigidness < worst.Tolerated) {
			worst = violations.Breach{Text: breachText(r), Tolerated: l.Rigidness, Shared: l.Shared}
			if l.RTT > 0 && r.Short != "" {
				by, estimated := m.latency.HowMeasured(in.id().Service(), in.Node, l, &b, in.Desired.Targets)
				worst.Text, worst.Estimated = step.Clip(worst.Text+"; "+by), estimated
			}
		}
	}
	return worst
}

func breachText(r *api.Rejection) string {
	return step.Clip(fmt.Sprintf("%s: %s, need %s", r.Constraint, r.Have, r.Need))
}

// Relieve moves an instance to a node that meets its SLA. If there is none, the root may
// place the instance elsewhere.
func (m *Machine) Relieve(id api.InstanceID) {
	in := m.instances[id]
	in.Moves = slices.DeleteFunc(in.Moves, func(t time.Time) bool { return m.fx.Wall.Sub(t) >= time.Hour })
	if len(in.Moves) >= m.cfg.MovesPerHour {
		return
	}
	if in.NoBetterNode && m.stillNoBetterNode(in) {
		return
	}
	req := m.betterRequest(in)
	if best, ok := m.best(&req, in.seed()); ok {
		if in.exclusive() && !m.mayDisrupt(in, api.ReasonViolated, "") {
			m.changed(in)
			return
		}
		in.Moves = append(in.Moves, m.fx.Wall)
		m.save(in)
		m.decide(in, &req, api.NodeID(best.ID), api.ReasonViolated)
		return
	}
	if kept := in.Reserved; m.tryPreempt(in, &req) {
		if kept == "" { // the preemption is the start of the move
			in.Moves = append(in.Moves, m.fx.Wall)
			m.save(in)
		}
		return
	}
	if in.NoBetterNode {
		return
	}
	in.NoBetterNode = true
	if !in.exclusive() { // handing back an exclusive instance means that it does not run here
		why := m.explanation(in, &req, true)
		in.why, in.HandedBack = &why, true
	}
	m.changed(in)
}

// stillNoBetterNode reports whether an instance of the same kind fitted on no better node and no
// candidate has changed since then.
func (m *Machine) stillNoBetterNode(in *instance) bool {
	k, same := m.requestKindOf(in, true)
	if !same || m.reasons.version != m.version || len(in.demand.sla.Spreads)+len(in.demand.sla.AntiAffinities) > 0 {
		return false
	}
	_, known := m.reasons.of[k]
	return known
}

// betterRequest returns the request for moving an instance whose SLA is violated. Its bounds are
// tightened by spareMargin.
func (m *Machine) betterRequest(in *instance) sched.Request {
	req := m.request(in, string(in.Node))
	for i := range req.Bounds {
		b := &req.Bounds[i]
		b.RTT, b.Km = time.Duration(float64(b.RTT)*(1-spareMargin)), b.Km*(1-spareMargin)
	}
	return req
}

// ConstrainedOn returns the instances on a node whose SLA a change of the node may violate.
func (m *Machine) ConstrainedOn(id api.NodeID) (out []api.InstanceID) {
	for _, in := range m.nodes[id].sorted() {
		if in.demand.checked {
			out = append(out, in.id())
		}
	}
	return out
}

// On reports whether an instance is assigned to a node.
func (m *Machine) On(id api.InstanceID, node api.NodeID) bool {
	in := m.instances[id]
	return in != nil && in.Node == node
}

// ShowPositions reports the node's position to the root for the instances on it that the
// root watches.
func (m *Machine) ShowPositions(id api.NodeID) {
	for _, in := range m.nodes[id].assigned {
		m.showPosition(in)
	}
}

// watchStep is the smallest move in the latency space that is reported to the root, as a
// fraction of the distance from the origin.
const watchStep = 0.2

// showPosition reports an instance's position to the root if the root watches the instance
// and the position has changed by at least watchStep.
func (m *Machine) showPosition(in *instance) {
	n := m.nodes[in.Node]
	if !in.Desired.Watched || n == nil {
		return
	}
	here := n.position()
	known := in.shownPosition != nil && sameGeo(in.shownPosition.Geo, here.Geo) && (in.shownPosition.Coord == nil) == (here.Coord == nil)
	if known && (here.Coord == nil || !vivaldi.Moved(*here.Coord, *in.shownPosition.Coord, watchStep)) {
		return
	}
	in.shownPosition = &here
	m.changes.Shown[in.id()] = true
}

func sameGeo(a, b *api.Geo) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}
