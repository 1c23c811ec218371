package placement

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

const requestedDetail = "its move was requested"

// Move moves one instance to the node to, or to the best other node if to is empty, as a drain does: make before break, with
// its volumes if it has `move: volume`. It preempts nobody. A request for a node that has the instance, or to which it is
// moving, changes nothing. It returns api.ErrNotFound for an unknown instance or node, and api.ErrConflict with the constraint
// if the instance fits nowhere, is moving, or does not run. Errors name nodes only if to is given.
func (m *Machine) Move(id api.InstanceID, to api.NodeID) error {
	in := m.instances[id]
	if in == nil {
		return fmt.Errorf("instance %q: %w", id, api.ErrNotFound)
	}
	if to != "" && m.nodes[to] == nil {
		return fmt.Errorf("move %s: node %q: %w", id, to, api.ErrNotFound)
	}
	if to != "" && to == in.headsFor() {
		return nil
	}
	if why := m.immovable(in); why != "" {
		return fmt.Errorf("move %s: %s: %w", id, why, api.ErrConflict)
	}
	n := m.nodes[in.Node]
	withVolumes := in.movesVolumes() && n.volumes[id].any(in.demand.volumes)
	req := m.request(in, string(in.Node))
	if withVolumes {
		req = m.moveRequest(in, n)
	}
	if to != "" {
		req.Avoid = nil // the request is newer than a failure there
	}
	target, err := m.targetOf(in, &req, to)
	if err != nil {
		return fmt.Errorf("move %s: %w", id, err)
	}
	if (withVolumes || in.exclusive()) && !m.mayDisrupt(in, api.ReasonMoved, to) {
		if strings.HasPrefix(in.Moved, api.NotMoved) { // of an earlier request
			in.Moved = ""
		}
		m.changed(in)
		return nil
	}
	switch {
	case withVolumes:
		v := moves.Begin(n.Info.ID, target.Info.ID, in.Epoch, api.ReasonMoved)
		v.Only = to != ""
		if strings.HasPrefix(in.Moved, api.NotMoved) { // of an earlier request
			in.Moved = ""
		}
		m.moveTo(in, n, target, v)
	case in.exclusive():
		m.reserve(in, target)
		m.breakBeforeMake(in, api.ReasonMoved)
	case to != "":
		m.makeBeforeBreak(in, to, api.ReasonMoved, requestedDetail)
	default:
		m.decide(in, &req, target.Info.ID, api.ReasonMoved)
	}
	return nil
}

// movesToReservation reports whether an exclusive instance was stopped to move to the node where capacity is reserved for it.
func (in *instance) movesToReservation() bool {
	return in.Reserved != "" && in.Node == "" && in.Reason == api.ReasonMoved
}

// requestedMove describes a move by request that has not ended; "" if there is none.
func (in *instance) requestedMove() string {
	const text = "moves to another node by request"
	switch {
	case in.ended() || in.Leaving || in.Withdrawn:
	case in.Move != nil && in.Move.Reason == api.ReasonMoved, in.movesToReservation(), in.Disruption.waits() && in.Disruption.Reason == api.ReasonMoved:
		return text
	case in.ByRequest && in.hasKept():
		return text + ", and its earlier placement continues until the new one is ready"
	case in.ByRequest && (in.State == api.NodeScheduled || in.State == api.Created):
		return text + ", and the new placement is being started"
	}
	return ""
}

// headsFor returns the node that the instance is on, or to which its volumes are being copied.
func (in *instance) headsFor() api.NodeID {
	if in.Move.Holds() {
		return in.Move.To
	}
	return in.Node
}

// immovable returns why an instance cannot be moved now, "" if it can.
func (m *Machine) immovable(in *instance) string {
	n := m.nodes[in.Node]
	switch {
	case in.Leaving || in.Withdrawn:
		return "it is being removed"
	case in.Move != nil:
		return "it is moving already: " + in.Move.Text()
	case in.ended():
		return "it has no place: it is " + string(in.State)
	case in.Node == "" || n == nil:
		return "it is on no node: it is " + string(in.State) + "; see treeline why"
	case in.hasKept():
		return "it is moving already: its earlier placement continues until the new one is ready"
	case in.awaitsOldPlacement():
		return "it is moving already: its earlier placement is being stopped"
	case in.Moving || in.Reserved != "" || m.asks.Pending(in.id()):
		return "it is moving already, to a node that is not chosen yet"
	case n.Silent:
		return "its node is silent; it is placed elsewhere when the node counts as dead"
	}
	return ""
}

// targetOf returns the node to which an instance moves.
func (m *Machine) targetOf(in *instance, req *sched.Request, to api.NodeID) (*node, error) {
	if to == "" {
		best, ok := m.best(req, in.seed())
		if !ok {
			res := m.rank(req, in.seed())
			res.Rejected = slices.DeleteFunc(res.Rejected, func(r api.Rejection) bool { return r.Candidate == string(in.Node) })
			if len(res.Rejected) == 0 {
				return nil, fmt.Errorf("its cluster has no other node: %w", api.ErrConflict)
			}
			return nil, fmt.Errorf("it fits on no other node: %s: %w", summary(sched.Redact(sched.Explain(res))), api.ErrConflict)
		}
		return m.nodes[api.NodeID(best.ID)], nil
	}
	n := m.nodes[to]
	res := sched.Place(req, []sched.Candidate{*m.table.Get(string(to))}, m.cfg.Plugin, in.seed())
	for _, r := range res.Rejected {
		r = n.ExplainCaps(r)
		return nil, fmt.Errorf("it does not fit on node %s: constraint %s: need %s, have %s: %w", to, r.Constraint, r.Need, r.Have, api.ErrConflict)
	}
	if !m.devicesFit(req, string(to)) {
		return nil, fmt.Errorf("it does not fit on node %s: it needs a device for each kind, and the node has devices that are of several kinds at once: %w", to, api.ErrConflict)
	}
	return n, nil
}

// notMoved returns the detail of an instance whose requested move v has failed.
func notMoved(v *moves.Move) string {
	return api.NotMoved + cmp.Or(v.Fault, "the other node takes no work any more")
}

// endRequestedMove ends a move by request whose volumes could not be copied, or whose target takes no work any more. The
// instance goes on where it runs.
func (m *Machine) endRequestedMove(in *instance) {
	detail := notMoved(in.Move)
	m.unreserve(in)
	in.moveFailed = nil
	in.Moved = detail // Detail is the node's, which says nothing of it
	m.endDisruption(in)
	m.changed(in)
	if n := m.nodes[in.Node]; n != nil && n.Draining && !n.Silent {
		m.evict(in)
	}
}
