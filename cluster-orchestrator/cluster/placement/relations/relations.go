// Package relations evaluates the constraints by which the places of instances depend on one
// another: links between services and to areas, spread and anti-affinity. It receives
// instances, their SLAs and the state of nodes as values, and returns the bounds and domains
// of a request. It is not safe for concurrent use.
package relations

import (
	"maps"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/scheduler-plugins/sched"
)

// Node is the state of a node that these constraints depend on. It is read-only.
type Node struct {
	Position api.Position
	Labels   map[string]string
	Areas    []string
}

// SLA is the part of an SLA with these constraints. It is read-only.
type SLA struct {
	Links          []sched.Link
	Spreads        []sched.Spread
	AntiAffinities []sched.AntiAffinity
}

// refers reports whether the SLA names other services or areas.
func (s *SLA) refers() bool {
	return len(s.AntiAffinities) > 0 || slices.ContainsFunc(s.Links, func(l sched.Link) bool { return l.User == "" })
}

// Machine has the placements of a cluster's instances.
type Machine struct {
	cluster    api.ClusterID
	nodes      map[api.NodeID]*node
	instances  map[api.InstanceID]*instance
	services   map[api.ServiceID]*service
	apps       index                                    // all services
	linking    index                                    // services whose SLAs refer to others
	areas      map[string]*sched.Places                 // positions of the nodes in each area
	departures map[api.ServiceID]map[api.ServiceID]bool // by service that left a node: services it kept out

	version    uint64               // counts changes of places and labels
	moves      uint64               // counts changes of positions that links depend on
	appMoves   map[api.AppID]uint64 // moves at the last change in an application
	areasMoved uint64               // moves at the last change in an area
}

type node struct {
	Node
	instances map[api.InstanceID]*instance
}

type instance struct {
	id       api.InstanceID
	sla      SLA
	targets  []api.Target
	node     api.NodeID // "": none
	expected api.NodeID // where capacity is reserved for it; "": nowhere
}

// service is a service that has instances, or that a plan pretends to have.
type service struct {
	sla         SLA // received last
	instances   map[api.InstanceID]*instance
	peers       map[string]int         // number of instances by node
	expected    map[string]int         // number of reservations by node
	places      sched.Places           // of the nodes in peers
	inbound     map[linkKey]*inbound   // links of other services to it
	labelCounts map[string]labelCounts // by label
}

// New returns a Machine without nodes and instances.
func New(cluster api.ClusterID) *Machine {
	return &Machine{
		cluster: cluster, nodes: map[api.NodeID]*node{}, instances: map[api.InstanceID]*instance{}, services: map[api.ServiceID]*service{},
		apps: index{}, linking: index{}, areas: map[string]*sched.Places{}, departures: map[api.ServiceID]map[api.ServiceID]bool{},
		appMoves: map[api.AppID]uint64{},
	}
}

func (m *Machine) SetNode(id api.NodeID, is Node) {
	is.Areas = slices.Compact(slices.Sorted(slices.Values(is.Areas)))
	n, name := m.nodes[id], string(id)
	if n == nil {
		n = &node{instances: map[api.InstanceID]*instance{}}
		m.nodes[id] = n
	}
	m.setAreas(id, n.Areas, is)
	relabelled := !maps.Equal(n.Labels, is.Labels)
	n.Node = is
	m.version++
	seen := map[api.ServiceID]bool{}
	for _, in := range n.instances {
		m.markMoved(in)
		service := in.id.Service()
		if seen[service] {
			continue
		}
		seen[service] = true
		if relabelled {
			m.recordDeparture(service)
		}
		m.countMove(service.App())
		m.services[service].removeNode(name)
		m.services[service].addNode(name, is.Position)
	}
}

// DropNode removes a node. It must have no instances.
func (m *Machine) DropNode(id api.NodeID) {
	m.setAreas(id, m.nodes[id].Areas, Node{})
	delete(m.nodes, id)
}

// setAreas replaces a node's areas and its position in them.
func (m *Machine) setAreas(id api.NodeID, old []string, n Node) {
	if len(old)+len(n.Areas) > 0 {
		m.moves++
		m.areasMoved = m.moves
	}
	for _, a := range old {
		if p := m.areas[a]; !slices.Contains(n.Areas, a) {
			if p.Drop(string(id)); p.Len() == 0 {
				delete(m.areas, a)
			}
		}
	}
	for _, a := range n.Areas {
		if m.areas[a] == nil {
			m.areas[a] = &sched.Places{}
		}
		m.areas[a].Put(string(id), n.Position)
	}
}

func (m *Machine) SetInstance(id api.InstanceID, sla SLA, targets []api.Target) {
	in := m.instances[id]
	if in == nil {
		in = &instance{id: id}
		m.instances[id] = in
	}
	in.sla, in.targets = sla, targets
	s := m.service(id.Service())
	s.instances[id], s.sla = in, sla
	if sla.refers() {
		m.linking.add(id.Service())
	}
}

// SetTargets replaces the targets in other clusters of an instance's links.
func (m *Machine) SetTargets(id api.InstanceID, targets []api.Target) {
	in := m.instances[id]
	in.targets = targets
	m.markMoved(in)
}

// Remove removes an instance that has no node, and returns whether it was the last of its
// service.
func (m *Machine) Remove(id api.InstanceID) (last bool) {
	service := id.Service()
	for to := range m.apps[service.App()] {
		for _, w := range m.services[to].inbound {
			if w.from == service {
				w.remove(id)
				delete(w.changed, id)
			}
		}
	}
	delete(m.instances, id)
	s := m.services[service]
	delete(s.instances, id)
	if len(s.instances) == 0 {
		m.drop(service)
	}
	return len(s.instances) == 0
}

func (m *Machine) service(id api.ServiceID) *service {
	s := m.services[id]
	if s == nil {
		s = &service{instances: map[api.InstanceID]*instance{}, peers: map[string]int{}, expected: map[string]int{}, labelCounts: map[string]labelCounts{}}
		m.services[id] = s
		m.apps.add(id)
	}
	return s
}

func (m *Machine) drop(id api.ServiceID) {
	for to := range m.apps[id.App()] {
		for k, w := range m.services[to].inbound {
			if k.from == id || to == id {
				w.places.Clear() // a table may still refer to them
				delete(m.services[to].inbound, k)
			}
		}
	}
	delete(m.services, id)
	m.apps.remove(id)
	m.linking.remove(id)
	if len(m.linking[id.App()]) == 0 {
		delete(m.appMoves, id.App())
	}
}

// Place puts an instance on a node. It returns whether it is the first of its service there.
func (m *Machine) Place(id api.InstanceID, on api.NodeID) (first bool) {
	in := m.instances[id]
	in.node = on
	m.nodes[on].instances[id] = in
	first = m.count(id.Service(), on, +1)
	m.markMoved(in)
	m.countMove(id.Service().App())
	return first
}

// Unplace takes an instance off its node. It returns whether it was the last of its service
// there.
func (m *Machine) Unplace(id api.InstanceID) (last bool) {
	in := m.instances[id]
	last = m.count(id.Service(), in.node, -1)
	delete(m.nodes[in.node].instances, id)
	in.node = ""
	m.markMoved(in)
	m.recordDeparture(id.Service())
	m.countMove(id.Service().App())
	return last
}

// CountTentatively adds by (1 or -1) to the instances of a service on a node until undo is called. It
// reports whether the first instance of the service came there, or the last left.
func (m *Machine) CountTentatively(id api.ServiceID, on api.NodeID, by int) (changed bool, undo func()) {
	s := m.service(id)
	changed = m.count(id, on, by)
	return changed, func() {
		m.count(id, on, -by)
		if len(s.instances) == 0 && len(s.peers) == 0 {
			m.drop(id)
		}
	}
}

// count adds by to the instances of a service on a node, and reports whether the first came
// there or the last left.
func (m *Machine) count(id api.ServiceID, on api.NodeID, by int) (changed bool) {
	s, name := m.services[id], string(on)
	m.version++
	was := s.peers[name]
	switch now := was + by; {
	case now == 0:
		delete(s.peers, name)
		s.removeNode(name)
		return true
	default:
		if s.peers[name] = now; was == 0 {
			s.addNode(name, m.nodes[on].Position)
		}
		return was == 0
	}
}

// Expect counts an instance with a reservation on a node there for spread and anti-affinity.
func (m *Machine) Expect(id api.InstanceID, on api.NodeID) {
	m.instances[id].expected = on
	m.services[id.Service()].expected[string(on)]++
}

func (m *Machine) Unexpect(id api.InstanceID) {
	s, in := m.services[id.Service()], m.instances[id]
	at := string(in.expected)
	in.expected = ""
	if s.expected[at]--; s.expected[at] == 0 {
		delete(s.expected, at)
	}
	m.recordDeparture(id.Service())
}

// Peers returns the number of instances of a service by node. The map is read-only.
func (m *Machine) Peers(id api.ServiceID) map[string]int {
	if s := m.services[id]; s != nil {
		return s.peers
	}
	return nil
}

// Instances returns the instances of a service in the order of their ids.
func (m *Machine) Instances(id api.ServiceID) []api.InstanceID {
	if s := m.services[id]; s != nil {
		return step.Keys(s.instances)
	}
	return nil
}

// SLA returns the SLA of a service that was received last.
func (m *Machine) SLA(id api.ServiceID) (s SLA) {
	if of := m.services[id]; of != nil {
		s = of.sla
	}
	return s
}

// Linked reports whether an SLA of the application refers to other services or areas.
func (m *Machine) Linked(app api.AppID) bool { return len(m.linking[app]) > 0 }

// Size returns the number of entries about services, for tests.
func (m *Machine) Size() int { return len(m.services) + len(m.apps) + len(m.linking) }

// countMove records a change of a position in an application.
func (m *Machine) countMove(app api.AppID) {
	if m.Linked(app) {
		m.moves++
		m.appMoves[app] = m.moves
	}
}

// LastMove returns a number that grows with each change of a position that the links of an
// instance to services and areas depend on.
func (m *Machine) LastMove(id api.InstanceID) uint64 {
	n := m.appMoves[id.Service().App()]
	if slices.ContainsFunc(m.instances[id].sla.Links, func(l sched.Link) bool { return l.Area != "" }) {
		n = max(n, m.areasMoved)
	}
	return n
}

// recordDeparture records the services that an instance may have kept out of the domain that it leaves.
func (m *Machine) recordDeparture(id api.ServiceID) {
	s := m.services[id]
	spread := len(s.sla.Spreads) > 0
	if m.departures[id] != nil || !spread && !m.Linked(id.App()) {
		return
	}
	kept := map[api.ServiceID]bool{}
	for other := range m.apps[id.App()] {
		names := func(of *service, from, to api.ServiceID) bool {
			return slices.ContainsFunc(of.sla.AntiAffinities, func(a sched.AntiAffinity) bool { return a.Names(from, to) })
		}
		if other == id && spread || names(s, id, other) || names(m.services[other], other, id) {
			kept[other] = true
		}
	}
	m.departures[id] = kept
}

// HasDepartures reports whether instances have left their nodes since the last KeptOut.
func (m *Machine) HasDepartures() bool { return len(m.departures) > 0 }

// KeptOut returns the services that may have been kept out of a domain by instances that have
// left their nodes since the last call.
func (m *Machine) KeptOut() map[api.ServiceID]bool {
	kept := map[api.ServiceID]bool{}
	for _, ids := range m.departures {
		maps.Copy(kept, ids)
	}
	clear(m.departures)
	return kept
}

// index has services by their application.
type index map[api.AppID]map[api.ServiceID]bool

func (x index) add(id api.ServiceID) {
	if x[id.App()] == nil {
		x[id.App()] = map[api.ServiceID]bool{}
	}
	x[id.App()][id] = true
}

func (x index) remove(id api.ServiceID) {
	delete(x[id.App()], id)
	if len(x[id.App()]) == 0 {
		delete(x, id.App())
	}
}

// within reports whether two positions are known to meet a link's limit.
func within(l sched.Link, a, b api.Position) bool {
	if a.Node != "" && a.Node == b.Node {
		return true
	}
	if l.Km > 0 {
		return a.Geo != nil && b.Geo != nil && a.Geo.Kilometres(*b.Geo) <= l.Km
	}
	return a.Coord != nil && b.Coord != nil && vivaldi.Distance(*a.Coord, *b.Coord) <= l.RTT
}
