package placement

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// An instance with `move: volume` leaves a drained node with its local volumes (package moves). Until the last
// pass is complete, it belongs to its source and has a reservation at its target. Then it is assigned to the target. The
// source's copy is deleted when the new placement is ready.

// ToMoves is the address of the adapter that copies volumes, which gets all Tasks when they change.
const ToMoves api.Addr = "moves"

// Tasks has all tasks of the moves in the cluster, in the order of the instances' ids.
type Tasks []moves.Task

// Tasks returns all tasks.
func (m *Machine) Tasks() (out Tasks) {
	for _, id := range step.Keys(m.moving) {
		in := m.instances[id]
		spec := in.assignment().Spec
		if v := in.Move; v != nil && (v.Phase == moves.Copying || v.Phase == moves.Finishing) {
			out = append(out, moves.Task{Instance: id, Epoch: v.Epoch, Phase: v.Phase, From: v.From, To: v.To, Spec: spec, Values: in.fetching()})
		}
		for _, c := range in.OldCopies {
			out = append(out, moves.Task{Instance: id, Epoch: c.Epoch, Phase: moves.Discarding, To: c.Node, Spec: spec})
		}
	}
	return out
}

// noteMove records whether the instance has tasks. It is called when the instance is saved.
func (m *Machine) noteMove(in *instance) {
	shown := ""
	if v := in.Move; v != nil {
		shown = string(v.Phase) + " " + string(v.From) + " " + string(v.To) + " " + v.Epoch.String()
	}
	for _, c := range in.OldCopies {
		shown += " " + string(c.Node) + " " + c.Epoch.String()
	}
	if shown == in.shownMove {
		return
	}
	in.shownMove = shown
	m.changes.Moves = true
	if m.moving[in.id()] = true; shown == "" {
		delete(m.moving, in.id())
	}
}

func (in *instance) movesVolumes() bool {
	return in.Desired.Spec.MovesVolumes() && len(in.demand.csi) == 0
}

// beginMove begins to copy the volumes of an instance that has to leave its node, and reserves capacity for it, or lets it wait for the
// disruption budget of its service. It returns false if
// the instance does not move with its volumes, they are not known yet, or it fits nowhere.
func (m *Machine) beginMove(in *instance, reason api.Reason) bool {
	n := m.nodes[in.Node]
	if !in.movesVolumes() || in.Move != nil || n == nil || n.Silent || !n.volumes[in.id()].any(in.demand.volumes) {
		return false
	}
	to, ok := m.moveTarget(in, n)
	if ok && !m.mayDisrupt(in, reason, "") {
		m.awaitDisruption(in)
		return true
	}
	if ok {
		m.moveTo(in, n, to, moves.Begin(n.Info.ID, to.Info.ID, in.Epoch, reason))
	}
	return ok
}

// beginMoveStopped is beginMove for an instance that was stopped because its node had to be free.
func (m *Machine) beginMoveStopped(in *instance) bool {
	if !in.movesVolumes() || in.Move != nil || in.Node != "" {
		return false
	}
	n := m.nodes[m.volumeNode(in.requestInput())]
	if n == nil || n.Silent || n.out() == "" || !n.volumes[in.id()].any(in.demand.volumes) {
		return false
	}
	to, ok := m.moveTarget(in, n)
	if ok {
		v := moves.Begin(n.Info.ID, to.Info.ID, n.volumesPlaced[in.id()], api.ReasonDrained)
		v.Ended(m.fx.Wall)
		m.moveTo(in, n, to, v)
		m.explain(in, api.ReasonDrained, v.Text(), nil)
	}
	return ok
}

func (m *Machine) moveTarget(in *instance, from *node) (*node, bool) {
	req := m.moveRequest(in, from)
	best, ok := m.best(&req, in.seed())
	return m.nodes[api.NodeID(best.ID)], ok
}

// moveRequest is the request of an instance for a node to which its volumes are copied.
func (m *Machine) moveRequest(in *instance, from *node) sched.Request {
	avoid := append([]string{string(from.Info.ID)}, in.avoid...)
	req := m.requestOf(in.requestInput(), append(avoid, in.moveFailed...)...)
	req.VolumeAt, req.Needs = "", in.demand.takes.Claim.Resources
	return req
}

func (m *Machine) moveTo(in *instance, from, to *node, v *moves.Move) {
	m.cancelQuestion(in)
	m.unreserve(in)
	in.Moving, in.HandedBack, in.why = in.Node != "" && v.Reason != api.ReasonMoved, false, nil
	in.dropCopies(to.Info.ID)
	in.Move, in.notMoved = v, ""
	m.reserve(in, to)
	if in.Moving || in.Node == "" { // one that moves by request may stay
		m.waiting.Add(in.id())
	}
	m.changed(in)
}

func (in *instance) dropCopies(at api.NodeID) {
	in.OldCopies = slices.DeleteFunc(in.OldCopies, func(c moves.Copy) bool { return c.Node == at })
}

// giveUpMove ends a move whose source has the volumes. The caller saves the instance.
func (m *Machine) giveUpMove(in *instance) {
	v := in.Move
	if !v.Holds() {
		return
	}
	in.Move = nil
	if in.Node == "" && v.Reason == api.ReasonMoved {
		in.notMoved = notMoved(v)
	}
	if m.nodes[v.To] != nil {
		in.dropCopies(v.To)
		in.OldCopies = append(in.OldCopies, moves.Copy{Node: v.To, Epoch: v.Epoch})
	}
	if in.State == api.ClusterScheduled {
		in.lostReason = api.ReasonNone
	}
}

// continueMove reports whether an instance without a node waits for the last pass of its move.
func (m *Machine) continueMove(in *instance) bool {
	v := in.Move
	if !v.Holds() {
		return false
	}
	to := m.nodes[v.To]
	if m.nodes[v.From] == nil || to == nil || to.Closed() {
		m.unreserve(in)
		return false
	}
	m.waiting.Add(in.id())
	if v.Ended(m.fx.Wall) {
		in.Reason, in.Detail = v.Reason, v.Text()
		m.changed(in)
	}
	return true
}

// MoveResult handles the result of a task.
func (m *Machine) MoveResult(r moves.Result) {
	in := m.instances[r.Instance]
	if in == nil {
		return
	}
	if r.Phase == moves.Discarding {
		n := len(in.OldCopies)
		if r.Fault == "" {
			in.OldCopies = slices.DeleteFunc(in.OldCopies, func(c moves.Copy) bool { return c.Node == r.To && c.Epoch == r.Epoch })
		}
		if len(in.OldCopies) < n {
			m.save(in)
		}
		return
	}
	r.Fault, r.Bytes = step.Clip(r.Fault), max(0, r.Bytes)
	switch act := in.Move.Apply(r, m.fx.Wall); act {
	case moves.Stop:
		m.stopToMove(in)
	case moves.Start:
		m.assign(in, in.Move.To, in.Move.Reason, in.Move.Text())
	case moves.Wait, moves.Other:
		if act == moves.Other && !in.Move.Only && m.otherTarget(in) {
			return
		}
		if act == moves.Other && in.Move.Reason == api.ReasonMoved {
			m.endRequestedMove(in)
			return
		}
		if in.Node == "" {
			in.Detail = in.Move.Text()
		}
		m.changed(in)
	case moves.GiveUp:
		in.moveFailed = append(in.moveFailed, string(in.Move.To))
		m.fx.Timers.Set(effects.Key{Kind: effects.Move, Instance: in.id()}, m.fx.Now.Add(moveAgain))
		m.unreserve(in)
		m.tryPlace(in)
	}
}

// moveAgain is how long after a failed last pass the target is tried again, with a first pass.
const moveAgain = time.Minute

// MoveDue lets an instance move to nodes to which its volumes could not be copied.
func (m *Machine) MoveDue(id api.InstanceID) {
	in := m.instances[id]
	if in == nil {
		return
	}
	in.moveFailed = nil
	if in.Moving && !in.awaitsEnd() {
		m.beginMove(in, api.ReasonDrained)
	}
}

// otherTarget moves the instance to another node than before, if one fits.
func (m *Machine) otherTarget(in *instance) bool {
	from := m.nodes[in.Node]
	if from == nil {
		return false
	}
	was := in.Move
	in.moveFailed = append(in.moveFailed, string(was.To))
	to, ok := m.moveTarget(in, from)
	if !ok {
		in.moveFailed = nil
		return false
	}
	m.unreserve(in)
	m.moveTo(in, from, to, moves.Begin(was.From, to.Info.ID, was.Epoch, was.Reason))
	return true
}

// stopToMove stops the instance at the source. The last pass begins when nothing of it runs.
func (m *Machine) stopToMove(in *instance) {
	m.unassign(in, true)
	in.Moving = false
	if in.State != api.ClusterScheduled {
		in.State = lifecycle.Must(in.State, lifecycle.Replace)
	}
	in.Reason, in.Detail, in.lostReason = in.Move.Reason, in.Move.Text(), api.ReasonNone
	m.changed(in)
	m.waiting.Add(in.id())
	if !in.awaitsOldPlacement() {
		m.tryPlace(in)
	}
}

// observeMove ends a move when the new placement is available.
func (m *Machine) observeMove(in *instance) {
	v := in.Move
	if v == nil || v.Phase != moves.Starting || in.Node != v.To || in.State != api.Running && !in.ended() {
		return
	}
	v.Runs(m.fx.Wall)
	if in.serving() || in.ended() {
		m.endMove(in, false)
		return
	}
	// One that never listens and has no checks is available when it runs.
	wait := listenTime
	if in.Reason == api.ReasonNotReady || in.Reason == api.ReasonUnhealthy {
		wait = healthTime
	}
	m.fx.Timers.SetEarlier(effects.Key{Kind: effects.Listen, Instance: in.id()}, m.fx.Now.Add(wait))
}

// endMove lets the source's copy be deleted. With early, the instance counts as available since it has been running.
func (m *Machine) endMove(in *instance, early bool) {
	v := in.Move
	since := m.fx.Wall
	if early {
		since = v.Running
	}
	in.Moved, in.Move = v.Summary(since), nil
	in.dropCopies(v.From)
	if m.nodes[v.From] != nil {
		in.OldCopies = append(in.OldCopies, moves.Copy{Node: v.From, Epoch: v.Epoch})
	}
	m.endDisruption(in)
	m.changed(in)
	if n := m.nodes[in.Node]; n != nil && n.Draining && !n.Silent {
		m.evict(in)
	}
}

// returnToVolumes assigns an instance without a node to the node that has its volumes, although that is drained or
// cordoned: its move was given up, or it has a new version. From a drained node it moves again.
func (m *Machine) returnToVolumes(in *instance) bool {
	n := m.nodes[m.volumeNode(in.requestInput())]
	if !in.movesVolumes() || in.Node != "" || in.lostReason == api.ReasonDrained || n == nil || !n.Draining && !n.Cordoned || n.Purging {
		return false
	}
	facts := n.Node
	n.Draining, n.Cordoned = false, false
	ok := n.out() == "" && m.fits(in, n, n.without(in.id()))
	n.Node = facts
	if !ok {
		return false
	}
	m.assign(in, n.Info.ID, api.ReasonNone, "goes on where its volumes are")
	if n.Draining {
		m.evict(in)
	}
	return true
}

// retryReturned places the instances whose volumes are on a node that is back, and which takes no other work.
func (m *Machine) retryReturned(n *node) {
	if n.out() == "" {
		return
	}
	for _, id := range m.waiting.List() {
		if in := m.instances[id]; in != nil && in.Node == "" && in.movesVolumes() && m.volumeNode(in.requestInput()) == n.Info.ID {
			m.tryPlace(in)
		}
	}
}
