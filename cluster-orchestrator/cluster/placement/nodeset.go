package placement

import (
	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (n *node) sorted() []*instance {
	out := make([]*instance, 0, len(n.assigned))
	for _, id := range step.Keys(n.assigned) {
		out = append(out, n.assigned[id])
	}
	return out
}

// touch begins a new generation of the node's desired set, at most once per step.
func (m *Machine) touch(n *node) {
	if m.touched[n.Info.ID] {
		return
	}
	m.touched[n.Info.ID] = true
	n.set.Begin(m.nextGen())
	n.must = min(n.must, n.set.Gen()) // a newer copy of the store, with higher generations, may have been lost
}

// Flush sends this step's changes of desired sets to the nodes.
func (m *Machine) Flush() {
	for _, id := range step.Keys(m.touched) {
		if n := m.nodes[id]; n != nil {
			m.send(n, n.set.Changes(m.fx.Now, n.entry))
		}
	}
	clear(m.touched)
}

func (n *node) entry(id api.InstanceID) wire.Assignment { return n.assigned[id].assignment() }

func (m *Machine) send(n *node, d wire.Desired) {
	timing := m.timing
	if d.Timing, d.Purge = &timing, n.Purging; d.From == 0 {
		d.Brokers = m.cfg.Brokers
	}
	m.fx.ToNode(n.Info.ID, d)
}
