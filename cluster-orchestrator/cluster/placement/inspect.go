package placement

import (
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/membership"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/account"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/relations"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched"
)

// Inspection is the incrementally updated state of a Machine, for tests that recompute it.
// It is read-only and valid until the next call of the Machine.
type Inspection struct {
	Nodes      map[api.NodeID]NodeInspection
	Relations  *relations.Machine
	Questions  *extsched.Exchange
	Waiting    []api.InstanceID // in the order in which they are placed
	AboveShare map[api.InstanceID]bool
	Watched    map[api.InstanceID]bool // instances whose SLA is checked periodically
	Placed     [8]int
	Size       int // number of entries in all tables, to detect leaks

	Preempts func(api.InstanceID) bool // reports whether others can be preempted for the instance
}

// NodeInspection is the state of a node.
type NodeInspection struct {
	Facts         membership.Node
	Relation      relations.Node
	Account       *account.Node
	Out           string
	Gen           api.Generation
	Wanted, Known api.Digest
	Assigned      []wire.Assignment
	Observed      map[api.InstanceID]api.Observed
	Has           func(api.InstanceID) bool // assigned, leaving, or capacity is reserved; of a booking of volumes: they are there
	Leased        int
}

func (m *Machine) Inspect() Inspection {
	i := Inspection{
		Nodes: map[api.NodeID]NodeInspection{}, Relations: m.relations, Questions: m.asks, Waiting: m.waitingByUrgency(), AboveShare: m.aboveShare,
		Watched: map[api.InstanceID]bool{}, Placed: m.placed, Size: len(m.instances) + m.relations.Size() + len(m.waiting.List()),
	}
	i.Preempts = func(id api.InstanceID) bool {
		in := m.instances[id]
		req := m.request(in)
		n, _ := m.findVictims(in, &req)
		return n != nil
	}
	for id, in := range m.instances {
		i.Watched[id] = in.demand.checked
	}
	for id, n := range m.nodes {
		v := NodeInspection{
			Facts: n.Node, Relation: n.relation(), Account: n.account, Out: n.out(), Gen: n.set.Gen(), Wanted: n.set.Digest(), Known: n.known, Observed: n.observed, Leased: n.leased,
			Has: func(id api.InstanceID) bool {
				if owner, is := strings.CutPrefix(string(id), volumesPrefix); is {
					_, has := n.volumes[api.InstanceID(owner)]
					return has
				}
				if strings.HasPrefix(string(id), restorePrefix) {
					return true
				}
				return n.assigned[id] != nil || n.leaving[id] || n.reserved[id] != nil
			},
		}
		for _, in := range n.sorted() {
			v.Assigned = append(v.Assigned, in.assignment())
		}
		i.Nodes[id] = v
		i.Size += len(n.assigned) + len(n.leaving) + len(n.account.Bookings()) + len(n.claims) + len(n.observed) + len(n.unknownClaims)
	}
	open, waiting := m.asks.Size()
	i.Size += open + waiting
	return i
}
