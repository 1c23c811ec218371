package placement

import (
	"reflect"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// SetDesired applies the root's desired state of an instance.
func (m *Machine) SetDesired(a wire.Assignment) {
	in := m.instances[a.Instance]
	moves := a.Moves
	a.Moves = nil // they are kept in the instance's record
	switch {
	case in == nil:
		in = &instance{Record: Record{
			Epoch: a.Epoch, State: api.ClusterScheduled, Moves: wire.MergeMoves(moves, nil, m.fx.Wall),
			Restarts: a.Restarts, Failures: a.Failures,
		}}
		m.setAssignment(in, a)
		m.changes.Wanted = m.changes.Wanted.Toggle(a.Digest())
		if m.beginDormant(in) {
			return
		}
		m.changed(in)
		m.tryPlace(in)
	case in.Local && a.Epoch.Root() == in.Epoch.Root() && a.SpecRev == in.Desired.SpecRev:
		// The root adopted an instance that the operator added.
		in.Local = false
		m.setAssignment(in, a)
		m.changes.Wanted = m.changes.Wanted.Toggle(a.Digest())
		m.changed(in)
	case !in.Local && !in.Leaving && in.onlyValuesDiffer(a):
		m.revalue(in, a)
	case !in.Local && !in.Leaving && in.Desired.Digest() == a.Digest():
		m.updateTargets(in, a)
	default:
		in.Moves = wire.MergeMoves(in.Moves, moves, m.fx.Wall)
		m.updateDesired(in, a)
	}
}

// updateTargets updates an instance's targets in other clusters and whether the root watches it.
// The instance is retried if it waits for a node.
func (m *Machine) updateTargets(in *instance, a wire.Assignment) {
	if b := &in.Desired; !reflect.DeepEqual(b.MaxUnavailable, a.MaxUnavailable) || b.Disrupts != a.Disrupts {
		b.MaxUnavailable, b.Disrupts = a.MaxUnavailable, a.Disrupts
		m.changed(in)
		m.continueDisruption(in)
	}
	if reflect.DeepEqual(in.Desired.Targets, a.Targets) && in.Desired.Watched == a.Watched {
		return
	}
	in.Desired.Targets, in.Desired.Watched = a.Targets, a.Watched
	m.save(in)
	m.showPosition(in)
	m.relations.SetTargets(in.id(), a.Targets)
	m.retryAnywhere(in)
}

// updateDesired replaces the desired state of an instance that the cluster already has, and places
// it again.
func (m *Machine) updateDesired(in *instance, a wire.Assignment) {
	if !in.Local && !in.Leaving {
		m.toggleDesired(in)
	}
	m.changes.Wanted = m.changes.Wanted.Toggle(a.Digest())
	old, urgency := in.Node, in.demand.request.Urgency
	m.cancelQuestion(in)
	m.unreserve(in)
	if in.notMoved != "" {
		in.notMoved = api.NotMoved + "it got a new version"
	}
	m.endKeptPlacements(in)
	if old != "" {
		m.unassign(in, true)
	}
	m.setAssignment(in, a)
	in.Epoch = max(a.Epoch, in.Epoch)
	in.allStopped = false
	in.Local, in.Leaving, in.Withdrawn, in.HandedBack, in.AwaitsOffer, in.Moving, in.GivenUp = false, false, false, false, false, false, false
	in.Violated, in.NoBetterNode, in.searchUntil, in.lostReason, in.shownPosition = "", false, time.Time{}, api.ReasonNone, nil
	in.avoid, in.why, in.Restarts, in.Failures, in.ExitCode = nil, nil, a.Restarts, a.Failures, nil
	in.Disruption = nil
	in.State = api.ClusterScheduled
	in.Reason, in.Detail = api.ReasonUpdated, ""
	// A service that scales and is awake gets its new SLA awake.
	if (old == "" || a.Spec.Dormant(a.Instance.Number()) != api.ReasonIdle) && m.beginDormant(in) {
		return
	}
	m.changed(in)
	if old != "" && m.staysOn(in, m.nodes[old]) {
		m.assign(in, old, api.ReasonNone, "")
		if in.demand.request.Urgency < urgency {
			m.freedNodes[old] = true // more urgent instances may preempt it now
		}
		return
	}
	m.tryPlace(in)
}

// staysOn reports whether the instance's own node can take the new placement. The old
// placement's resources count as free, because the node stops it first.
func (m *Machine) staysOn(in *instance, n *node) bool {
	if n.out() != "" {
		return false
	}
	if slices.ContainsFunc(in.OldPlacements, func(v oldPlacement) bool { return v.Node != n.Info.ID }) && in.exclusive() {
		return false
	}
	return m.fits(in, n, n.without(in.id()))
}

// RemoveDesired ends an instance that is no longer in the desired set.
func (m *Machine) RemoveDesired(id api.InstanceID) {
	in := m.instances[id]
	if in == nil || in.Leaving {
		return
	}
	if !in.Local {
		m.toggleDesired(in)
	}
	in.Leaving = true
	m.cancelQuestion(in)
	m.unreserve(in)
	m.endKeptPlacements(in)
	m.waiting.Remove(id)
	if in.Node != "" {
		m.unassign(in, true)
	}
	if in.State != api.Terminated {
		in.State = lifecycle.Must(in.State, lifecycle.Withdraw)
	}
	in.HandedBack, in.Moving, in.NoBetterNode, in.Violated = false, false, false, ""
	in.Reason, in.Detail = api.ReasonDeleted, ""
	m.changed(in)
	m.finish(in)
}

// RemoveOthers ends all instances of the root except those in wanted.
func (m *Machine) RemoveOthers(wanted map[api.InstanceID]bool) {
	for _, id := range step.Keys(m.instances) {
		if in := m.instances[id]; !wanted[id] && !in.Local {
			m.RemoveDesired(id)
		}
	}
}
