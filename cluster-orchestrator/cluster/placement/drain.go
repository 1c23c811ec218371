package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Drain moves a node's instances elsewhere. Call SetNode first. Instances that fit nowhere
// else keep running there. With force they are stopped and wait for capacity in this cluster
// or another one.
func (m *Machine) Drain(id api.NodeID, force bool) {
	n := m.nodes[id]
	n.allChanged()
	m.cfg.SaveNode(id)
	m.refresh(n)
	if n.Silent {
		return // its instances are being placed elsewhere already
	}
	for _, in := range n.assigned {
		in.moveFailed = nil
	}
	m.evictAll(n)
	if force {
		m.stopAll(n, false)
	}
}

// remaining returns the instances that a drained node still has, and why.
func (m *Machine) remaining(n *node) (out []api.Remaining) {
	for _, in := range n.sorted() {
		if len(out) == api.MaxRemaining {
			return out
		}
		if in.ended() || in.Leaving || in.Withdrawn {
			continue
		}
		r := api.Remaining{Instance: in.id(), State: in.State}
		switch {
		case n.Silent:
			r.Why = "the node is silent, so it is not known whether it runs"
		case m.asks.Pending(in.id()):
			r.Why = "waits for an answer of the scheduler " + m.cfg.Asks
		case in.Move != nil:
			r.Why = in.Move.Text()
			if in.Move.Holds() {
				r.Why += " (" + string(in.Move.To) + ")"
			}
		case in.Disruption.waits():
			r.Why, r.Reason = in.disruptionText(), api.ReasonDisruption
			r.Stuck = in.Desired.MaxUnavailable != nil && *in.Desired.MaxUnavailable == 0
		case in.Reserved != "":
			r.Why = "waits until preempted instances have stopped on the node where capacity is reserved for it"
		default:
			req := m.request(in, string(n.Info.ID))
			if in.movesVolumes() && n.volumes[in.id()].any(in.demand.volumes) {
				req = m.moveRequest(in, n)
			}
			why := sched.Explain(m.rank(&req, in.seed()))
			if r.Stuck = !slices.ContainsFunc(why.Causes, func(x api.Cause) bool { return x.Constraint == sched.Fits }); r.Stuck {
				r.Why = "fits on no other node: " + summary(why)
			} else {
				r.Why = "is about to move"
			}
		}
		out = append(out, r)
	}
	for _, id := range step.Keys(n.leaving) {
		if len(out) == api.MaxRemaining {
			break
		}
		r := api.Remaining{Instance: id, State: n.observed[id].State, Why: "is being stopped"}
		if _, goesOn := n.set.Kept(id); goesOn {
			r.Why = "continues until its new placement runs"
		} else if api.Ended(r.State, n.observed[id].Reason) {
			continue
		}
		out = append(out, r)
	}
	if !n.Silent || !n.Purging {
		return out
	}
	for _, id := range step.Keys(n.observed) { // it may have been placed elsewhere since
		o := n.observed[id]
		if len(out) == api.MaxRemaining {
			break
		}
		if n.assigned[id] == nil && !n.leaving[id] && !api.Ended(o.State, o.Reason) {
			out = append(out, api.Remaining{Instance: id, State: o.State, Why: "ran there when the node last reported"})
		}
	}
	return out
}

// Vacate takes all instances off a node that is being purged. This includes ended instances,
// because their logs are on the node.
func (m *Machine) Vacate(id api.NodeID) {
	n := m.nodes[id]
	if n.Silent {
		return // its instances are being placed elsewhere; it is vacated when it returns
	}
	m.stopAll(n, true)
}

// stopAll stops all instances on a node and places them elsewhere. With ended, it also takes
// ended instances off the node.
func (m *Machine) stopAll(n *node, ended bool) {
	for _, in := range n.sorted() {
		switch {
		case in.ended() && ended:
			m.unassign(in, true)
			m.changed(in)
		case !in.ended() && !in.Leaving && !in.Withdrawn:
			m.overrideBudget(in)
		}
	}
	for _, i := range n.set.AllKept() {
		if in := m.instances[i]; in != nil {
			m.endKeptPlacements(in)
		}
	}
}

// overrideBudget stops an instance although it fits nowhere else, or its disruption budget does not permit that,
// and has the root record the latter.
func (m *Machine) overrideBudget(in *instance) {
	overrides := in.Desired.MaxUnavailable != nil && in.available()
	in.Disruption = nil
	m.breakBeforeMake(in, api.ReasonDrained)
	if overrides && in.Node == "" {
		in.Detail += "; it was stopped regardless of the disruption budget of its service"
		m.changed(in)
	}
}
