// Package placement decides which node runs which instance of a cluster, and keeps the
// desired sets of the nodes. It has the instances, what each takes on its node, and which
// of them wait for a node. It gets facts about nodes, shares and round trips as values.
//
// What the rest of the cluster must know of a call is in Changes, which the caller reads
// after it. Machine is a sub-machine of the cluster's core, and not safe for concurrent use.
package placement

import (
	"net/netip"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/netbook/routes"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/placement/relations"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/scheduler-plugins/extsched"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Config has the settings of a Machine.
type Config struct {
	Cluster      api.ClusterID
	LocalNumbers int          // the first instance number that this cluster may assign
	Plugin       sched.Plugin // ranks the nodes
	Asks         string       // external scheduler that ranks them; empty: Plugin does
	Location     *api.Geo     // of nodes that do not report theirs; nil: unknown
	Share        float64      // of the nodes' capacity that the root may use, above 0 to 1
	Workload     Workload
	Preempt      bool     // an urgent instance may preempt less urgent ones
	MovesPerHour int      // that violations may cause, of one instance
	Brokers      []string // see wire.Desired

	// SaveNode saves the node's document, because Must has changed. What is saved later in
	// the step may rely on it.
	SaveNode func(api.NodeID)
}

// Latency has the measured and estimated round trips.
type Latency interface {
	// UserBound returns the bound of a link to a user, as far as its position is known.
	UserBound(l sched.Link) sched.Bound
	// Measured adds to the bound the measured round trips of a service's link, from all
	// nodes or from one.
	Measured(b *sched.Bound, self api.ServiceID, l sched.Link, targets []api.Target, only api.NodeID)
	// Measure begins to measure users that nothing is known of. It returns whether one is
	// being measured.
	Measure(users []string) (waits bool)
	// JudgedBy says what a link's round trip was judged by, and whether it was estimated.
	JudgedBy(self api.ServiceID, on api.NodeID, l sched.Link, b *sched.Bound, targets []api.Target) (how string, estimated bool)
	// SetLinks stores the links of a service. It returns the nodes that have to report
	// other measurements now.
	SetLinks(id api.ServiceID, links []sched.Link) []api.NodeID
	// SetRunning stores whether a service runs on a node.
	SetRunning(id api.ServiceID, on api.NodeID, runs bool)
	// Refer stores that the SLA of an instance, which is on a node or on none, names users.
	Refer(users []string, id api.InstanceID, on api.NodeID)
	// Unrefer undoes Refer.
	Unrefer(users []string, id api.InstanceID)
}

// Machine has the instances of a cluster.
type Machine struct {
	cfg     Config
	fx      *effects.Sink
	latency Latency
	timing  wire.Timing   // that nodes are given
	dead    time.Duration // silence after which a node is dead
	changes Changes

	nodes     map[api.NodeID]*node
	instances map[api.InstanceID]*instance
	relations *relations.Machine
	counter   step.Counter // of generations
	local     int          // instance numbers assigned by this cluster
	settled   bool         // all nodes have reported since the start, or had the time to

	table    sched.Table   // one candidate per node
	version  uint64        // of the table
	capacity api.Resources // of all nodes that are not silent
	used     api.Resources // of capacity
	short    shortlist
	reasons  reasons

	placed [8]int // instances on nodes, by urgency

	asks        *extsched.Exchange // with the external scheduler
	lastAsk     uint64
	waiting     step.Queue[api.InstanceID] // instances without a node, or that are to leave theirs
	held        []api.InstanceID           // to be placed again at a pace, after half the cluster fell silent
	beyond      map[api.InstanceID]bool    // exceed the root's share
	widened     bool                       // more of the root's share is free
	noPreempt   misfit                     // the last that exceeds the share and for which nothing can be preempted
	preemptFail map[api.InstanceID]bool    // pre-emption for them failed in this step
	grown       map[api.NodeID]bool        // have more room than before
	lapsed      []api.NodeID               // take no more work, and room is reserved on them
	vacated     map[api.InstanceID]bool    // an earlier placement ended in this step
	touched     map[api.NodeID]bool        // their desired sets changed in this step
}

// Changes are what calls changed that others must know.
type Changes struct {
	Places    map[routes.Place]bool   // what is there may have changed
	Instances map[api.InstanceID]bool // may have changed
	Tell      map[api.NodeID]bool     // have other services to measure
	Removed   []api.Observed          // last observations of removed instances
	Shown     map[api.InstanceID]bool // the root's view of them has changed, or is to be repeated
	Watch     map[api.InstanceID]bool // whether their SLAs may come to be violated
	Wanted    api.Digest              // change of the digest of the root's desired set
	Known     api.Digest              // change of the digest of all observations
	Sums      []Sums                  // after each change of the room
	Report    bool                    // the root is to be told without delay
	Local     bool                    // a local instance number was assigned
	Faults    []string                // of the external scheduler
}

// Sums are the sums over all nodes that are not silent.
type Sums struct {
	Capacity, Used api.Resources
	Much           bool // more than the amounts has changed
}

// New makes a Machine without nodes and instances.
func New(cfg Config, fx *effects.Sink, l Latency) *Machine {
	return &Machine{
		cfg: cfg, fx: fx, latency: l, settled: true,
		nodes: map[api.NodeID]*node{}, instances: map[api.InstanceID]*instance{}, relations: relations.New(cfg.Cluster),
		asks: extsched.New(), beyond: map[api.InstanceID]bool{}, preemptFail: map[api.InstanceID]bool{},
		grown: map[api.NodeID]bool{}, vacated: map[api.InstanceID]bool{},
		touched: map[api.NodeID]bool{}, changes: newChanges(),
	}
}

func newChanges() Changes {
	return Changes{
		Places: map[routes.Place]bool{}, Instances: map[api.InstanceID]bool{}, Tell: map[api.NodeID]bool{},
		Shown: map[api.InstanceID]bool{}, Watch: map[api.InstanceID]bool{},
	}
}

// Changes returns the changes since the last ClearChanges. They are read only.
func (m *Machine) Changes() *Changes { return &m.changes }

// ClearChanges discards the changes that were read.
func (m *Machine) ClearChanges() {
	ch := &m.changes
	clear(ch.Places)
	clear(ch.Instances)
	clear(ch.Tell)
	clear(ch.Shown)
	clear(ch.Watch)
	ch.Wanted, ch.Known, ch.Report, ch.Local = 0, 0, false, false
	ch.Removed, ch.Sums, ch.Faults = ch.Removed[:0], ch.Sums[:0], nil
}

// Begin begins a step.
func (m *Machine) Begin() { clear(m.preemptFail) }

// SetTiming stores the timing that nodes are given, and the silence after which a node is
// dead. With send, all nodes are sent the timing.
func (m *Machine) SetTiming(t wire.Timing, dead time.Duration, send bool) {
	m.timing, m.dead = t, dead
	if send {
		for _, id := range step.Keys(m.nodes) {
			m.touch(m.nodes[id])
		}
	}
}

// The documents of instances, and of the counter of generations.
const (
	KindInstance = "instance"
	KindMeta     = "meta"
	KeyCounter   = "generation"
)

func (m *Machine) nextGen() api.Generation {
	return api.Generation(m.counter.Next(&m.fx.Journal, KindMeta, KeyCounter))
}

// RestoreCounter restores the counter of generations.
func (m *Machine) RestoreCounter(data []byte) error { return m.counter.Restore(data) }

// Local returns how many local instance numbers were assigned.
func (m *Machine) Local() int { return m.local }

// SetLocal restores how many local instance numbers were assigned.
func (m *Machine) SetLocal(n int) { m.local = n }

// Invalidate notes that instances may fit where they did not: round trips have changed.
func (m *Machine) Invalidate() { m.version++ }

// roomChanged notes that the sums over the nodes have changed. much is whether more than
// the amounts has.
func (m *Machine) roomChanged(much bool) {
	m.changes.Sums = append(m.changes.Sums, Sums{m.capacity, m.used, much})
}

// SetSubnet stores a node's subnet of the overlay network.
func (m *Machine) SetSubnet(id api.NodeID, p netip.Prefix) {
	if n := m.nodes[id]; n != nil {
		n.subnet = p
		n.setAddresses()
		m.refresh(n)
	}
}

func one(is bool) int {
	if is {
		return 1
	}
	return 0
}
