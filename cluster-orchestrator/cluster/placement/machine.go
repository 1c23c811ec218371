// Package placement decides which node runs which instance of a cluster, and maintains the
// desired sets of the nodes. It owns the instances, their bookings on nodes, and the queue of
// instances that wait for a node. It receives the state of nodes, shares and round trips as
// values.
//
// After each call, the caller reads Changes and passes them to the other sub-machines.
// Machine is a sub-machine of the cluster's core and not safe for concurrent use.
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
	Share        float64      // part of the nodes' capacity that the root may use, in (0, 1]
	Workload     Workload
	Preempt      bool     // an urgent instance may preempt less urgent ones
	MovesPerHour int      // maximum moves of one instance because of violations
	Brokers      []string // see wire.Desired
	CSI          []string // names of the CSI drivers whose controllers the cluster can call
	Prometheus   bool     // the cluster evaluates expressions by which services scale

	// SaveNode saves the node's document. It is called when its state or Must changes, before
	// later saves of the step that rely on it.
	SaveNode func(api.NodeID)
}

// Latency provides measured and estimated round trips.
type Latency interface {
	// UserBound returns the bound of a link to a user. Bound.Unknown is set if the user's
	// position is not known.
	UserBound(l sched.Link) sched.Bound
	// Measured adds the measured round trips of a service's link to b: from all nodes, or
	// from the node only if it is set.
	Measured(b *sched.Bound, self api.ServiceID, l sched.Link, targets []api.Target, only api.NodeID)
	// Measure starts to measure users whose position is unknown. It reports whether a result
	// is pending.
	Measure(users []string) (waits bool)
	// HowMeasured describes how a link's round trip was determined, and reports whether it was
	// estimated.
	HowMeasured(self api.ServiceID, on api.NodeID, l sched.Link, b *sched.Bound, targets []api.Target) (how string, estimated bool)
	// SetLinks stores the links of a service. It returns the nodes that may have to measure
	// other services now.
	SetLinks(id api.ServiceID, links []sched.Link) []api.NodeID
	// SetRunning stores whether a service runs on a node.
	SetRunning(id api.ServiceID, on api.NodeID, runs bool)
	// Refer stores that an instance's SLA names users, and the instance's node or "".
	Refer(users []string, id api.InstanceID, on api.NodeID)
	// Unrefer undoes Refer.
	Unrefer(users []string, id api.InstanceID)
}

// Machine is the placement state of a cluster.
type Machine struct {
	cfg     Config
	fx      *effects.Sink
	latency Latency
	timing  wire.Timing   // sent to nodes
	dead    time.Duration // silence after which a node is dead
	changes Changes

	nodes     map[api.NodeID]*node
	instances map[api.InstanceID]*instance
	volumes   map[api.InstanceID]map[api.NodeID]bool // nodes that report local volumes of the instance
	csi       map[string]map[string]csiVolume        // CSI volumes by the id of their instance or service, and by name
	moving    map[api.InstanceID]bool                // instances that have Tasks, or whose move is in another phase
	relations *relations.Machine
	counter   step.Counter // of generations
	local     int          // number of instance numbers assigned by this cluster
	settled   bool         // since the start, all nodes have reported or the time to report is over

	table    sched.Table   // one candidate per node
	version  uint64        // of the table
	capacity api.Resources // of all nodes that are not silent
	used     api.Resources // of capacity
	short    shortlist
	reasons  reasons

	values map[wire.ValueKey]int // configs and secrets, with the number of instances that need each

	schedules schedules

	placed [8]int // number of instances on nodes, by urgency

	asks        *extsched.Exchange // with the external scheduler
	lastAsk     uint64
	waiting     step.Queue[api.InstanceID] // instances without a node, or that must leave their node
	paced       []api.InstanceID           // placed again at a limited rate after half the cluster fell silent
	aboveShare  map[api.InstanceID]bool    // instances that exceed the root's share
	shareGrew   bool                       // more of the root's share is free
	noPreempt   noFit                      // last instance beyond the share for which nothing can be preempted
	preemptFail map[api.InstanceID]bool    // instances for which preemption failed in this step
	freedNodes  map[api.NodeID]bool        // nodes that have more free than before
	lapsedNodes []api.NodeID               // closed nodes on which capacity is reserved
	endedOld    map[api.InstanceID]bool    // instances of which an earlier placement ended in this step
	touched     map[api.NodeID]bool        // nodes whose desired sets changed in this step
}

// Changes are the changes that the core passes to the other sub-machines.
type Changes struct {
	Places    map[routes.Place]bool   // places whose backend may have changed
	Instances map[api.InstanceID]bool // instances that may have changed
	Remeasure map[api.NodeID]bool     // nodes that must measure other services
	Removed   []api.Observed          // last observations of removed instances
	Shown     map[api.InstanceID]bool // instances to report to the root
	Nodes     map[api.NodeID]bool     // nodes whose view has changed; its load counts from loadStep on, and the last heartbeat does not
	Watch     map[api.InstanceID]bool // instances whose SLA is to be checked periodically, or no longer
	Wanted    api.Digest              // change of the digest of the root's desired set
	Known     api.Digest              // change of the digest of all observations
	Sums      []Sums                  // after each change of the sums
	Report    bool                    // a report to the root is due at once
	Local     bool                    // a local instance number was assigned
	Faults    []string                // of the external scheduler
	Values    bool                    // the result of Machine.Values
	Moves     bool                    // the result of Machine.Tasks
}

// Sums are the sums over all nodes that are not silent.
type Sums struct {
	Capacity, Used api.Resources
	NodesChanged   bool // something other than amounts has changed
}

// New makes a Machine without nodes and instances.
func New(cfg Config, fx *effects.Sink, l Latency) *Machine {
	return &Machine{
		cfg: cfg, fx: fx, latency: l, settled: true,
		nodes: map[api.NodeID]*node{}, instances: map[api.InstanceID]*instance{}, volumes: map[api.InstanceID]map[api.NodeID]bool{}, csi: map[string]map[string]csiVolume{}, moving: map[api.InstanceID]bool{}, relations: relations.New(cfg.Cluster),
		asks: extsched.New(), aboveShare: map[api.InstanceID]bool{}, preemptFail: map[api.InstanceID]bool{},
		freedNodes: map[api.NodeID]bool{}, endedOld: map[api.InstanceID]bool{},
		touched: map[api.NodeID]bool{}, values: map[wire.ValueKey]int{},
		changes: Changes{
			Places: map[routes.Place]bool{}, Instances: map[api.InstanceID]bool{}, Remeasure: map[api.NodeID]bool{},
			Shown: map[api.InstanceID]bool{}, Watch: map[api.InstanceID]bool{}, Nodes: map[api.NodeID]bool{},
		},
	}
}

// Changes returns the changes since the last ClearChanges. They are read-only.
func (m *Machine) Changes() *Changes { return &m.changes }

// ClearChanges discards the changes that were read.
func (m *Machine) ClearChanges() {
	ch := &m.changes
	clear(ch.Places)
	clear(ch.Instances)
	clear(ch.Remeasure)
	clear(ch.Shown)
	clear(ch.Nodes)
	clear(ch.Watch)
	ch.Wanted, ch.Known, ch.Report, ch.Local, ch.Values, ch.Moves = 0, 0, false, false, false, false
	ch.Removed, ch.Sums, ch.Faults = ch.Removed[:0], ch.Sums[:0], nil
}

func (m *Machine) Begin() { clear(m.preemptFail) }

// SetTiming stores the timing of nodes and the dead time. With send, the timing is sent to
// all nodes.
func (m *Machine) SetTiming(t wire.Timing, dead time.Duration, send bool) {
	m.timing, m.dead = t, dead
	if send {
		for _, id := range step.Keys(m.nodes) {
			m.touch(m.nodes[id])
		}
	}
}

// Kinds and keys of the documents of instances and of the counter of generations.
const (
	KindInstance = "instance"
	KindMeta     = "meta"
	KeyCounter   = "generation"
)

func (m *Machine) nextGen() api.Generation {
	return api.Generation(m.counter.Next(&m.fx.Journal, KindMeta, KeyCounter))
}

func (m *Machine) RestoreCounter(data []byte) error { return m.counter.Restore(data) }

// Local returns how many local instance numbers were assigned.
func (m *Machine) Local() int { return m.local }

// SetLocal restores how many local instance numbers were assigned.
func (m *Machine) SetLocal(n int) { m.local = n }

// Invalidate records that round trips have changed, so that instances may fit where they did
// not.
func (m *Machine) Invalidate() { m.version++ }

// sumsChanged records a change of the sums over the nodes. much: see Sums.
func (m *Machine) sumsChanged(much bool) {
	m.changes.Sums = append(m.changes.Sums, Sums{m.capacity, m.used, much})
}

func (m *Machine) SetSubnet(id api.NodeID, p netip.Prefix) {
	if n := m.nodes[id]; n != nil {
		if n.subnet != p {
			m.changes.Nodes[id] = true
		}
		n.subnet = p
		n.setAddresses()
		m.refresh(n)
	}
}
