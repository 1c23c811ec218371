package placement

import (
	"time"

	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

const (
	resend   = time.Second // minimum time until a desired set is sent again to a node that does not hold it
	largeSet = 32          // larger sets are sent as changes
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
	n.from = n.gen
	n.gen = max(m.nextGen(), n.gen+1)
	n.must = min(n.must, n.gen) // a newer copy of the store, with higher generations, may have been lost
}

// Flush sends this step's changes of desired sets to the nodes.
func (m *Machine) Flush() {
	for _, id := range step.Keys(m.touched) {
		n := m.nodes[id]
		if n == nil {
			continue
		}
		if len(n.assigned) <= largeSet || n.from == 0 || len(n.put)+len(n.drop) > len(n.assigned)/2 {
			m.sendWhole(n)
		} else {
			timing := m.timing
			d := wire.Desired{Gen: n.gen, From: n.from, Digest: n.wanted, Timing: &timing, Purge: n.Purging}
			for _, i := range step.Keys(n.put) {
				d.Put = append(d.Put, n.assigned[i].assignment())
			}
			d.Drop = step.Keys(n.drop)
			n.sentAt = m.fx.Now
			m.fx.ToNode(id, d)
		}
		clear(n.put)
		clear(n.drop)
	}
	clear(m.touched)
}

func (m *Machine) sendWhole(n *node) {
	timing := m.timing
	d := wire.Desired{Gen: n.gen, Digest: n.wanted, Timing: &timing, Brokers: m.cfg.Brokers, Purge: n.Purging}
	for _, in := range n.sorted() {
		d.Put = append(d.Put, in.assignment())
	}
	for _, id := range step.Keys(n.stays) {
		d.Put = append(d.Put, n.stays[id])
	}
	n.sentAt = m.fx.Now
	m.fx.ToNode(n.Info.ID, d)
}
