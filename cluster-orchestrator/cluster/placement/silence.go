package placement

import (
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/internal/lifecycle"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// nodeReturned handles the first heartbeat after a silence, a broken connection or the start of the
// cluster.
func (m *Machine) nodeReturned(n *node, r membership.Return) {
	if r.Silent {
		n.allChanged()
	}
	if r.Silent || r.First { // it may have fallen silent before the start
		m.reclaim(n)
	}
	m.refresh(n)
	if r.Silent && n.Draining {
		m.evictAll(n)
	}
	m.retryReturned(n)
}

// reclaim keeps the instances of a returning node that were not placed elsewhere meanwhile,
// and books capacity for those that were.
func (m *Machine) reclaim(n *node) {
	for _, in := range n.sorted() {
		if in.State == api.ClusterScheduled {
			m.waiting.Remove(in.id())
			in.HandedBack = false
			m.cancelQuestion(in)
			m.unreserve(in)
			m.applyEvent(in, lifecycle.NodeChosen, api.ReasonNone, "its node is back")
			if o, ok := n.observed[in.id()]; ok && o.Epoch == in.Epoch {
				m.observed(n, in, o)
			}
		}
	}
	for _, id := range step.Keys(n.observed) {
		m.bookReported(n, id)
	}
}

// CallRoll requests an immediate heartbeat of those of the nodes that take work.
func (m *Machine) CallRoll(nodes []api.NodeID) {
	for _, id := range nodes {
		if n := m.nodes[id]; n.out() == "" {
			m.fx.ToNode(id, wire.Lease{Boot: n.Boot, Gen: n.set.Gen(), RequestAlive: true})
		}
	}
}

func (m *Machine) Assigned(id api.NodeID) int { return len(m.nodes[id].assigned) }

// Unsync requires a whole report of a node that has become silent, because it may return with
// instances that it never reported. Call SetNode first.
func (m *Machine) Unsync(id api.NodeID) { m.nodes[id].synced, m.nodes[id].complete = false, false }

// Silent handles a node that fell silent: its instances are placed elsewhere. With doubt, the
// cluster itself may be cut off, so it waits for another dead time and then places them at a
// limited rate. With reachable, other nodes probably still reach the node: until its instances are placed
// elsewhere, they are avoided in routes and not removed.
func (m *Machine) Silent(id api.NodeID, doubt, reachable bool) {
	n := m.nodes[id]
	n.reachable = reachable
	m.refresh(n)
	leaving := step.Keys(n.leaving)
	for _, id := range leaving {
		if n.set.EndKept(id) {
			m.touch(n)
		}
	}
	if len(leaving) > 0 {
		m.requireAck(n)
	}
	for _, id := range leaving {
		n.releaseClaim(id)
		if in := m.instances[id]; in != nil {
			m.endOldPlacement(in, n.Info.ID)
		}
	}
	m.refresh(n)
	m.lost(n, doubt)
}

// acceptWithin is how long a node may take to acknowledge an instance that was lost on
// another node. A node that takes longer may be cut off too.
const acceptWithin = 500 * time.Millisecond

// awaitAcceptance sets a timer to check a placement after the loss of a node. It does not for
// an exclusive instance, which must not be placed elsewhere before its node is dead.
func (m *Machine) awaitAcceptance(in *instance, reason api.Reason) {
	key := effects.Key{Kind: effects.Accept, Instance: in.id()}
	if reason == api.ReasonNodeLost && !in.exclusive() {
		m.fx.Timers.Set(key, m.fx.Now.Add(acceptWithin))
	} else {
		m.fx.Timers.Clear(key)
	}
}

// Unaccepted returns the node of an instance if it has not acknowledged the placement. ok is
// false if it has, or if the placement has ended.
func (m *Machine) Unaccepted(id api.InstanceID) (on api.NodeID, ok bool) {
	in := m.instances[id]
	if in == nil {
		return "", false
	}
	n := m.nodes[in.Node]
	if n == nil || n.Silent || n.ack >= in.assignedGen || in.State != api.NodeScheduled || in.Leaving || in.Withdrawn {
		return "", false
	}
	return in.Node, true
}

// PlaceElsewhere moves an instance to another node, if there is one. If its present node is
// alive, that node drops the instance.
func (m *Machine) PlaceElsewhere(id api.InstanceID) {
	in := m.instances[id]
	if req, best, ok := m.find(in, string(in.Node)); ok {
		m.decide(in, &req, api.NodeID(best.ID), api.ReasonNodeLost)
	}
}

func (m *Machine) lost(n *node, doubt bool) {
	for _, in := range n.sorted() {
		if in.ended() {
			continue
		}
		if in.State != api.ClusterScheduled {
			m.applyEvent(in, lifecycle.NodeLost, api.ReasonNodeLost, lostDetail)
		}
		if doubt {
			m.paced = append(m.paced, in.id())
			continue
		}
		m.placeLost(in)
	}
	if doubt && len(m.paced) > 0 && !m.fx.Timers.Has(effects.Key{Kind: effects.Pace}) {
		m.fx.Timers.Set(effects.Key{Kind: effects.Pace}, m.fx.Now.Add(m.dead))
	}
}

// The rate at which the instances of many silent nodes are placed again.
const (
	paceEvery = 500 * time.Millisecond
	paceCount = 20
)

// awaitsHeartbeat reports whether a node is suspect only because it did not answer the roll call
// in time, while its next heartbeat is not overdue.
func (m *Machine) awaitsHeartbeat() bool {
	for _, n := range m.nodes {
		if n.Suspect && n.Heard && !n.Silent && n.Answers && !n.Overdue(m.fx.Now, m.timing.Heartbeat) {
			return true
		}
	}
	return false
}

// Pace places the next instances that were held back because the cluster doubted its own
// connection.
func (m *Machine) Pace() {
	for i := 0; i < paceCount && len(m.paced) > 0; {
		id := m.paced[0]
		m.paced = m.paced[1:]
		in := m.instances[id]
		if in == nil || in.Reason != api.ReasonNodeLost || in.State != api.ClusterScheduled || in.Leaving {
			continue // its node is back, or it is no longer desired
		}
		m.placeLost(in)
		i++
	}
	if len(m.paced) > 0 {
		m.fx.Timers.Set(effects.Key{Kind: effects.Pace}, m.fx.Now.Add(paceEvery))
	}
}

// placeLost places an instance of a silent node elsewhere. If it fits nowhere, it is handed
// back. Unless it is exclusive, it stays assigned to its node, which may return.
func (m *Machine) placeLost(in *instance) {
	if in.Node == "" {
		m.tryPlace(in)
		return
	}
	if in.Move.Holds() {
		m.unreserve(in)
	}
	req, best, ok := m.find(in, string(in.Node))
	if ok {
		m.decide(in, &req, api.NodeID(best.ID), api.ReasonNodeLost)
		return
	}
	if m.useExisting(in, &req) {
		return
	}
	if m.awaitsHeartbeat() {
		m.paced = append(m.paced, in.id())
		m.fx.Timers.SetEarlier(effects.Key{Kind: effects.Pace}, m.fx.Now.Add(m.timing.Heartbeat))
		return
	}
	why := m.explanation(in, &req, false)
	m.handBack(in, api.ReasonNodeLost, in.Detail+"; "+summary(why), &why)
}
