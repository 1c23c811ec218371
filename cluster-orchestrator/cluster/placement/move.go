package placement

import (
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/moves"
)

// A move off a live node is make before break: the node keeps the old placement until the
// new one runs and is ready by its health checks or, without them, listens on the overlay network. An exclusive instance is stopped first,
// and so is one whose new placement is on the same node.

// makeBeforeBreak assigns the instance to another node. A running old placement on a live node
// continues until the new one runs.
func (m *Machine) makeBeforeBreak(in *instance, to api.NodeID, reason api.Reason, detail string) {
	m.fx.Timers.Clear(effects.Key{Kind: effects.Listen, Instance: in.id()})
	from, old := m.nodes[in.Node], in.assignment()
	stays := in.State == api.Running && !from.Silent && to != in.Node
	m.assign(in, to, reason, detail)
	if !stays {
		return
	}
	for i := range in.OldPlacements {
		if v := &in.OldPlacements[i]; v.Node == from.Info.ID {
			v.Kept = &old
			from.set.Keep(old)
		}
	}
	from.placeChanged(in.id())
	m.save(in)
}

// listenTime is how long a new placement may run without listening until the old one is
// ended anyway. A netmanager reports within a few seconds whether an instance listens.
const listenTime = 10 * time.Second

// healthTime is how long a new placement may run without passing its health checks until the old one is
// ended anyway. Checks that fail for good restart it before, and then another node is chosen.
const healthTime = 10 * time.Minute

// endKeptIfReplaced ends the old placements once the new one can replace them.
func (m *Machine) endKeptIfReplaced(in *instance) {
	n, key := m.nodes[in.Node], effects.Key{Kind: effects.Listen, Instance: in.id()}
	switch {
	case !in.hasKept():
		return
	case in.State == api.Running && !in.Ready && (in.Reason == api.ReasonNotReady || in.Reason == api.ReasonUnhealthy):
		m.fx.Timers.SetEarlier(key, m.fx.Now.Add(healthTime))
	case in.State == api.Running && n != nil && n.Info.Network == api.NetworkOverlay && !in.Ready:
		m.fx.Timers.SetEarlier(key, m.fx.Now.Add(listenTime))
	case in.State == api.Running || in.ended():
		m.fx.Timers.Clear(key)
		m.endKeptPlacements(in)
	}
}

// ListenDue ends the old placements although the new one was not reported to listen.
func (m *Machine) ListenDue(id api.InstanceID) {
	in := m.instances[id]
	if in == nil || in.State != api.Running {
		return
	}
	if in.Desired.MaxUnavailable != nil && !in.available() && in.hasKept() {
		m.fx.Timers.Set(effects.Key{Kind: effects.Listen, Instance: id}, m.fx.Now.Add(healthTime))
		return // ending the old placement would be a disruption
	}
	m.endKeptPlacements(in)
	if v := in.Move; v != nil && v.Phase == moves.Starting && in.Node == v.To {
		m.endMove(in, true)
	}
	if d := in.Disruption; d != nil && d.Begun && in.Epoch > d.Epoch && in.Move == nil && in.available() {
		in.Disruption = nil
		m.changed(in)
	}
}

// hasKept reports whether an earlier placement continues until the present one runs.
func (in *instance) hasKept() bool {
	return slices.ContainsFunc(in.OldPlacements, func(v oldPlacement) bool { return v.Kept != nil })
}

// returnToKept assigns an instance that lost its new node and fits on no other back to the node
// where its earlier placement continues, if that node takes work. The earlier placement's
// resources count as free.
func (m *Machine) returnToKept(in *instance) bool {
	for _, v := range in.OldPlacements {
		n := m.nodes[v.Node]
		if v.Kept != nil && n != nil && n.out() == "" && m.fits(in, n, n.without(in.id())) {
			m.assign(in, v.Node, in.lostReason, "stays on its node")
			return true
		}
	}
	return false
}

// endKeptPlacements ends the instance's earlier placements on all nodes.
func (m *Machine) endKeptPlacements(in *instance) {
	broke := false
	for i := range in.OldPlacements {
		v := &in.OldPlacements[i]
		n := m.nodes[v.Node]
		if v.Kept == nil {
			continue
		}
		v.Kept, broke = nil, true
		if n == nil || !n.set.EndKept(in.id()) {
			continue
		}
		m.touch(n)
		n.placeChanged(in.id())
		v.Gen = n.set.Gen()
	}
	if broke {
		m.changed(in) // a requested move ends with this
	}
}
