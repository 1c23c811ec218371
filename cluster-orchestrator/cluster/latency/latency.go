// Package latency keeps a cluster's measurements of round trips: between services, measured
// by the kernels of nodes on TCP connections, and to the users that SLAs name, measured by
// probes. It also chooses the peers that each node measures to keep its coordinate accurate.
//
// It is a sub-machine of the cluster's core and not safe for concurrent use. The core passes
// it changes of nodes, of the services on them, and of the services' links.
package latency

import (
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/cluster-orchestrator/cluster/effects"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Probe is the operator's policy on probing the users that SLAs name; see probe.Permitted.
type Probe struct {
	Off   bool // no user is probed
	Allow []netip.Prefix
	Deny  []netip.Prefix
}

// Machine is the state of all measurements.
type Machine struct {
	fx      *effects.Sink
	cluster api.ClusterID
	probe   Probe

	// State that the core sets.
	nodes  []*node // in the order of the core's candidates
	at     map[api.NodeID]*node
	apps   map[api.AppID]*app
	remote map[api.ServiceID]map[endpoint]bool // nodes of other clusters in the service's route

	started   bool
	pairs     pairs
	users     map[string]*user
	probes    map[uint64]string // user by id of a pending probe order
	lastProbe uint64
	rounds    *roundQueue
}

// Node is the state of a node that measurements depend on.
type Node struct {
	ID      api.NodeID
	Coord   *api.Coordinate // in the latency space; nil: unknown
	Probes  bool            // it is connected and may be ordered to probe
	Silent  bool
	Overlay bool // it is a member of the overlay network
}

type node struct {
	Node
	pos      int // in Machine.nodes
	services map[api.ServiceID]bool
	peers    peerChoice
}

// app has the services of an application that have links or run in the cluster.
type app struct {
	services map[api.ServiceID]*service
	linking  int // number of services with links
}

type service struct {
	links []sched.Link // of the newest SLA
	nodes map[api.NodeID]bool
}

// Result is the effect of an input on placement.
type Result struct {
	Changed  bool             // other nodes may meet a latency constraint now
	Measured []api.InstanceID // instances whose SLA names a user that has been measured
}

func New(fx *effects.Sink, cluster api.ClusterID, probe Probe) *Machine {
	return &Machine{
		fx: fx, cluster: cluster, probe: probe, at: map[api.NodeID]*node{}, apps: map[api.AppID]*app{},
		remote: map[api.ServiceID]map[endpoint]bool{}, pairs: pairs{},
		users: map[string]*user{}, probes: map[uint64]string{}, rounds: newRoundQueue(maxRounds, tenantRounds),
	}
}

// Start begins a process lifetime. From now on, peers are chosen for nodes to measure.
func (m *Machine) Start() {
	m.started = true
	for _, id := range step.Keys(m.at) {
		m.choosePeersSoon(m.at[id])
	}
}

// SetNode adds a node, or replaces its state. After Start, peers are chosen for members of
// the overlay network.
func (m *Machine) SetNode(n Node) {
	known := m.at[n.ID]
	if known == nil {
		known = &node{pos: len(m.nodes), services: map[api.ServiceID]bool{}}
		m.at[n.ID] = known
		m.nodes = append(m.nodes, known)
	}
	known.Node = n
	m.choosePeersSoon(known)
}

// DropNode removes a node. No service may run on it.
func (m *Machine) DropNode(id api.NodeID) {
	n := m.at[id]
	if n == nil {
		return
	}
	m.dropPeers(n)
	last := m.nodes[len(m.nodes)-1]
	m.nodes[n.pos], last.pos = last, n.pos
	m.nodes = m.nodes[:len(m.nodes)-1]
	delete(m.at, id)
}

// SetLinks sets the links of a service's newest SLA; none if the service has no instance. It
// returns the nodes that may have to measure other services than before.
func (m *Machine) SetLinks(id api.ServiceID, links []sched.Link) (nodes []api.NodeID) {
	s, a := m.service(id), m.apps[id.App()]
	if slices.Equal(s.links, links) {
		m.prune(id)
		return nil
	}
	a.linking += min(len(links), 1) - min(len(s.links), 1)
	s.links = links
	for _, of := range a.services {
		for n := range of.nodes {
			nodes = append(nodes, n)
		}
	}
	m.prune(id)
	return nodes
}

func (m *Machine) SetRunning(id api.ServiceID, on api.NodeID, runs bool) {
	s, n := m.service(id), m.at[on]
	if runs {
		s.nodes[on] = true
		n.services[id] = true
		return
	}
	delete(s.nodes, on)
	delete(n.services, id)
	m.prune(id)
}

// SetRemote sets the nodes of other clusters in a service's route: the cluster of each node,
// by the text of the node's key.
func (m *Machine) SetRemote(id api.ServiceID, nodes map[api.NodeID]api.ClusterID) {
	if delete(m.remote, id); len(nodes) == 0 {
		return
	}
	m.remote[id] = map[endpoint]bool{}
	for n, cluster := range nodes {
		m.remote[id][endpoint{id, n, cluster}] = true
	}
}

func (m *Machine) service(id api.ServiceID) *service {
	a := m.apps[id.App()]
	if a == nil {
		a = &app{services: map[api.ServiceID]*service{}}
		m.apps[id.App()] = a
	}
	s := a.services[id]
	if s == nil {
		s = &service{nodes: map[api.NodeID]bool{}}
		a.services[id] = s
	}
	return s
}

// prune removes a service that has neither links nor nodes.
func (m *Machine) prune(id api.ServiceID) {
	a := m.apps[id.App()]
	if s := a.services[id]; len(s.links)+len(s.nodes) > 0 {
		return
	}
	if delete(a.services, id); len(a.services) == 0 {
		delete(m.apps, id.App())
	}
}

// Size has the numbers of a Machine's entries.
type Size struct{ Pairs, Users, Probes, Rounds, Services int }

func (m *Machine) Size() Size {
	s := Size{Users: len(m.users), Probes: len(m.probes), Rounds: m.rounds.size()}
	for _, at := range m.pairs {
		for _, others := range at {
			s.Pairs += len(others)
		}
	}
	for _, a := range m.apps {
		s.Services += len(a.services)
	}
	return s
}

// seededRandom returns pseudo-random numbers from a seed, so that a replay decides the same.
type seededRandom struct{ seed, n uint64 }

func newSeededRandom(parts ...any) seededRandom { return seededRandom{seed: sched.SeedOf(parts...)} }

// intn returns a number in [0, n).
func (d *seededRandom) intn(n int) int {
	d.n++
	return int(sched.SeedOf(d.seed, d.n) % uint64(n))
}

// duration returns a duration in [0, t).
func (d *seededRandom) duration(t time.Duration) time.Duration {
	return time.Duration(d.intn(int(t.Milliseconds()))) * time.Millisecond
}
