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

// Want applies the root's desired state of an instance.
func (m *Machine) Want(a wire.Assignment) {
	in := m.instances[a.Instance]
	moves := a.Moves
	a.Moves = nil // they are kept in the instance's record
	switch {
	case in == nil:
		in = &instance{Record: Record{
			Epoch: a.Epoch, State: api.ClusterScheduled, Moves: wire.MergeMoves(moves, nil, m.fx.Wall),
			Restarts: a.Restarts, Failures: a.Failures,
		}}
		m.wants(in, a)
		m.changes.Wanted = m.changes.Wanted.Toggle(a.Digest())
		m.changed(in)
		m.tryPlace(in)
	case in.Local && a.Epoch.Root() == in.Epoch.Root() && a.SpecRev == in.Want.SpecRev:
		// The root adopted an instance that the operator added.
		in.Local = false
		m.wants(in, a)
		m.changes.Wanted = m.changes.Wanted.Toggle(a.Digest())
		m.changed(in)
	case !in.Local && !in.Leaving && in.onlyValuesDiffer(a):
		m.revalue(in, a)
	case !in.Local && !in.Leaving && in.Want.Digest() == a.Digest():
		m.retarget(in, a)
	default:
		in.Moves = wire.MergeMoves(in.Moves, moves, m.fx.Wall)
		m.rewant(in, a)
	}
}

// retarget updates an instance's targets in other clusters and whether the root watches it.
// The instance is retried if it waits for a node.
func (m *Machine) retarget(in *instance, a wire.Assignment) {
	if reflect.DeepEqual(in.Want.Targets, a.Targets) && in.Want.Watched == a.Watched {
		return
	}
	in.Want.Targets, in.Want.Watched = a.Targets, a.Watched
	m.save(in)
	m.showPosition(in)
	m.relations.SetTargets(in.id(), a.Targets)
	m.searched(in)
}

// rewant replaces the desired state of an instance that the cluster already has, and places
// it again.
func (m *Machine) rewant(in *instance, a wire.Assignment) {
	if !in.Local && !in.Leaving {
		m.toggleWanted(in)
	}
	m.changes.Wanted = m.changes.Wanted.Toggle(a.Digest())
	old, urgency := in.Node, in.demand.request.Urgency
	m.unask(in)
	m.unreserve(in)
	m.breakOff(in)
	if old != "" {
		m.unassign(in, true)
	}
	m.wants(in, a)
	in.Epoch = max(a.Epoch, in.Epoch)
	in.stilled = false
	in.Local, in.Leaving, in.Withdrawn, in.Offered, in.Bound, in.Moving, in.GivenUp = false, false, false, false, false, false, false
	in.Violated, in.Strained, in.until, in.cause, in.shownPosition = "", false, time.Time{}, api.ReasonNone, nil
	in.avoid, in.why, in.Restarts, in.Failures, in.ExitCode = nil, nil, a.Restarts, a.Failures, nil
	in.State = api.ClusterScheduled
	in.Reason, in.Detail = api.ReasonUpdated, ""
	m.changed(in)
	if old != "" && m.staysOn(in, m.nodes[old]) {
		m.moveTo(in, old, api.ReasonNone, "")
		if in.demand.request.Urgency < urgency {
			m.grown[old] = true // more urgent instances may preempt it now
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
	if slices.ContainsFunc(in.Vacancies, func(v vacancy) bool { return v.Node != n.Info.ID }) && in.exclusive() {
		return false
	}
	return m.fits(in, n, n.without(in.id()))
}

// Unwant ends an instance that is no longer in the desired set.
func (m *Machine) Unwant(id api.InstanceID) {
	in := m.instances[id]
	if in == nil || in.Leaving {
		return
	}
	if !in.Local {
		m.toggleWanted(in)
	}
	in.Leaving = true
	m.unask(in)
	m.unreserve(in)
	m.breakOff(in)
	m.waiting.Remove(id)
	if in.Node != "" {
		m.unassign(in, true)
	}
	if in.State != api.Terminated {
		in.State = lifecycle.Must(in.State, lifecycle.Withdraw)
	}
	in.Offered, in.Moving, in.Strained, in.Violated = false, false, false, ""
	in.Reason, in.Detail = api.ReasonDeleted, ""
	m.changed(in)
	m.finish(in)
}

// UnwantOthers ends all instances of the root except those in wanted.
func (m *Machine) UnwantOthers(wanted map[api.InstanceID]bool) {
	for _, id := range step.Keys(m.instances) {
		if in := m.instances[id]; !wanted[id] && !in.Local {
			m.Unwant(id)
		}
	}
}
