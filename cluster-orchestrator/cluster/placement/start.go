package placement

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// StartNode resumes a node after a start of the cluster.
func (m *Machine) StartNode(id api.NodeID) {
	n := m.nodes[id]
	m.touch(n) // generations may have been lost: continue above them
	if n.leased > 0 {
		m.fx.ToNode(id, wire.Lease{RequestAlive: true}) // its lease was last renewed before the start
	}
	m.refresh(n)
}

// Start resumes all instances after a start of the cluster. Nothing is handed back to the
// root before Settle, because the nodes have not reported yet.
func (m *Machine) Start() {
	for _, id := range step.Keys(m.instances) {
		in := m.instances[id]
		in.OldPlacements = slices.DeleteFunc(in.OldPlacements, func(v oldPlacement) bool { return m.nodes[v.Node] == nil })
		for i := range in.OldPlacements {
			in.OldPlacements[i].Gen = m.nodes[in.OldPlacements[i].Node].set.Gen()
		}
		if in.Moving || in.Node == "" && !in.Leaving && !in.Withdrawn && !in.AwaitsOffer && !in.dormant() {
			m.waiting.Add(id)
		}
		m.endKeptIfReplaced(in)
		m.finish(in)
	}
	for _, in := range m.instances {
		m.noteChanged(in)
	}
	m.startSchedules()
	m.settled = false
	m.fx.Timers.Set(effects.Key{Kind: effects.Settle}, m.fx.Now.Add(m.dead))
}

// Settle ends the wait for the nodes' reports after a start, and places the instances that
// wait for a node.
func (m *Machine) Settle() {
	if m.settled {
		return
	}
	m.settled = true
	m.reasons = reasons{} // preemption was not allowed before
	m.fx.Timers.Clear(effects.Key{Kind: effects.Settle})
	for _, id := range m.waitingByUrgency() {
		if in := m.instances[id]; in != nil && in.Node == "" {
			m.tryPlace(in)
		}
	}
	for _, id := range step.Keys(m.nodes) {
		if n := m.nodes[id]; n.Draining && n.Heard {
			m.evictAll(n)
		}
	}
}

// RetryInstance retries a waiting instance after a measurement or at the end of its search time.
func (m *Machine) RetryInstance(id api.InstanceID) {
	if in := m.instances[id]; in != nil {
		m.retryAnywhere(in)
	}
}
