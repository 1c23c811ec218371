// Package routes keeps a cluster's resources of the overlay network: services with their
// addresses and backends, the nodes that host them, the nodes' subscriptions, and the exchange
// of resources with other clusters through the root. It does no I/O.
//
//	b := routes.New("munich")
//	b.SetBackend(routes.Place{Node: "n1", Instance: id}, api.Backend{…})
//	b.Subscribe("n2", wire.Subscription{Address: semantic, For: client}, until)
//	records, _ := b.Flush("n2", wire.MaxPart)
package routes

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// MaxSubscriptions bounds the subscriptions of one node.
const MaxSubscriptions = 1 << 14

// Place is an instance on a node.
type Place struct {
	Node     api.NodeID
	Instance api.InstanceID
}

// Spec is the network's part of an instance's assignment.
type Spec struct {
	Rev       api.Revision // of the SLA
	Addresses api.ServiceAddresses
	Access    api.Access
	Ports     []api.PortMap
	Asleep    bool // a packet to an address without a backend wakes it
}

// Registry has the resources of a cluster. It is not safe for concurrent use.
type Registry struct {
	cluster api.ClusterID
	ranges  wire.NetRanges
	shares  []netip.Prefix

	services map[api.ServiceID]*service
	names    interest.Names
	owners   map[netip.Addr]map[api.ServiceID]int // number of instances, by semantic address
	places   map[Place]api.Backend
	at       map[netip.Addr]Place // by instance address
	members  map[api.NodeID]*member
	keys     map[api.PeerKey]api.NodeID
	subnets  map[netip.Prefix]api.NodeID
	hosts    map[api.NodeID]map[api.ServiceID]int // number of instances on a node, including leaving ones

	// Nodes has the nodes' subscriptions. Only methods of the Registry may change it.
	Nodes *interest.Subscriptions[api.NodeID]
	root  uplink
	rev   uint64
}

// service is a service with instances in the cluster or a route from the root.
type service struct {
	specs    map[api.InstanceID]Spec
	newest   api.InstanceID // the instance with the newest SLA; "": none
	backends map[Place]bool
	foreign  bool // the root has sent a route
}

type member struct {
	peer   api.Peer
	public api.Peer // as sent to other clusters
	places map[Place]bool
}

func New(c api.ClusterID) *Registry {
	return &Registry{
		cluster: c, services: map[api.ServiceID]*service{}, names: interest.Names{}, owners: map[netip.Addr]map[api.ServiceID]int{},
		places: map[Place]api.Backend{}, at: map[netip.Addr]Place{}, members: map[api.NodeID]*member{},
		keys: map[api.PeerKey]api.NodeID{}, subnets: map[netip.Prefix]api.NodeID{}, hosts: map[api.NodeID]map[api.ServiceID]int{},
		Nodes: interest.New[api.NodeID](), root: newUplink(),
	}
}

// Begin makes revisions start above rev. It must exceed the revisions of earlier processes.
func (b *Registry) Begin(rev uint64) { b.rev = max(b.rev, rev) }

// NextRev returns a revision above all earlier ones.
func (b *Registry) NextRev() uint64 {
	b.rev++
	return b.rev
}

// Ranges returns the installation's ranges; zero until the root has sent them.
func (b *Registry) Ranges() wire.NetRanges { return b.ranges }

func (b *Registry) Shares() []netip.Prefix { return b.shares }

func (b *Registry) SetRanges(r wire.NetRanges, shares []netip.Prefix) { b.ranges, b.shares = r, shares }

func (b *Registry) inShares(a netip.Addr) bool {
	return slices.ContainsFunc(b.shares, func(p netip.Prefix) bool { return p.Contains(a) })
}

// changed marks a resource of the cluster as changed for nodes and the root.
func (b *Registry) changed(k interest.Key) {
	b.Nodes.Changed(k)
	b.root.exports.Changed(k)
}

func (b *Registry) service(id api.ServiceID) *service {
	s := b.services[id]
	if s == nil {
		s = &service{specs: map[api.InstanceID]Spec{}, backends: map[Place]bool{}}
		b.services[id] = s
		b.names.Add(id)
	}
	return s
}

func (b *Registry) SetSpec(id api.InstanceID, spec Spec) {
	s := b.service(id.Service())
	old, had := s.specs[id]
	if had && old.Rev == spec.Rev {
		if old.Asleep != spec.Asleep {
			old.Asleep = spec.Asleep
			s.specs[id] = old
			b.routeChanged(id.Service(), true)
		}
		return
	}
	newest := s.newest
	s.specs[id] = spec
	b.index(id.Service(), spec.Addresses, +1)
	if had {
		b.index(id.Service(), old.Addresses, -1)
	}
	if newest == "" || newest == id || spec.Rev > s.specs[newest].Rev {
		s.elect()
		b.accessChanged(id.Service())
	}
	b.routeChanged(id.Service(), true)
}

func (b *Registry) DropSpec(id api.InstanceID) {
	s := b.services[id.Service()]
	if s == nil {
		return
	}
	old, had := s.specs[id]
	if !had {
		return
	}
	delete(s.specs, id)
	b.index(id.Service(), old.Addresses, -1)
	if s.newest == id {
		s.elect()
		b.accessChanged(id.Service())
	}
	b.routeChanged(id.Service(), true)
}

// elect sets newest to the instance with the newest SLA.
func (s *service) elect() {
	s.newest = ""
	for id, spec := range s.specs {
		if best := s.specs[s.newest]; s.newest == "" || spec.Rev > best.Rev || spec.Rev == best.Rev && id < s.newest {
			s.newest = id
		}
	}
}

// index adds by to the instances of a service that have its addresses.
func (b *Registry) index(id api.ServiceID, a api.ServiceAddresses, by int) {
	eachAddress(a, func(addr netip.Addr) {
		if b.owners[addr] == nil {
			b.owners[addr] = map[api.ServiceID]int{}
		}
		was := b.owners[addr][id]
		if b.owners[addr][id] += by; b.owners[addr][id] == 0 {
			delete(b.owners[addr], id)
		}
		if len(b.owners[addr]) == 0 {
			delete(b.owners, addr)
		}
		if was == 0 || was+by == 0 {
			b.resolveAll(b.Nodes.About(wire.Subscription{Address: addr}))
		}
	})
}

func eachAddress(a api.ServiceAddresses, fn func(netip.Addr)) {
	for _, addr := range []netip.Addr{a.RoundRobin, a.Closest} {
		if addr.IsValid() {
			fn(addr)
		}
	}
	for _, addr := range a.Instances {
		fn(addr)
	}
}

// owner returns the service that has a semantic address, or "". Of several, it prefers one
// with a route from the root, because the root assigns these addresses.
func (b *Registry) owner(a netip.Addr) (best api.ServiceID) {
	for id := range b.owners[a] {
		s, than := b.services[id], b.services[best]
		if best == "" || s.foreign && !than.foreign || s.foreign == than.foreign && id < best {
			best = id
		}
	}
	return best
}

// accessChanged resolves the subscriptions again that depend on a service's access list.
func (b *Registry) accessChanged(id api.ServiceID) {
	b.resolveAll(b.Nodes.About(wire.Subscription{Service: id}))
	eachAddress(b.addresses(id), func(a netip.Addr) { b.resolveAll(b.Nodes.About(wire.Subscription{Address: a})) })
	b.resolveAll(b.Nodes.For(id))
	if s := b.services[id]; s != nil {
		for _, p := range sorted(s.backends) {
			b.sourceChanged(b.places[p].Address)
		}
	}
}

func sorted(places map[Place]bool) []Place {
	out := make([]Place, 0, len(places))
	for p := range places {
		out = append(out, p)
	}
	slices.SortFunc(out, ComparePlaces)
	return out
}

// ComparePlaces orders places by node and instance.
func ComparePlaces(a, b Place) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Instance, b.Instance))
}

// routeChanged handles a change of a service's route. own means that the cluster's own part
// changed, which the root must get too.
func (b *Registry) routeChanged(id api.ServiceID, own bool) {
	k := interest.RouteOf(id)
	if own {
		b.changed(k)
	} else {
		b.Nodes.Changed(k)
	}
	b.root.resolve(b, b.root.exports.About(wire.Subscription{Service: id}))
	if s := b.services[id]; s == nil || len(s.specs) == 0 && len(s.backends) == 0 && !s.foreign {
		delete(b.services, id)
		b.names.Remove(id)
		b.resolveAll(b.Nodes.About(wire.Subscription{Service: id}))
		b.resolveAll(b.Nodes.For(id))
	}
}

// SetHosted sets whether a node has an instance, assigned or leaving. A node's subscriptions
// on behalf of a service are only answered if it hosts an instance of the service.
func (b *Registry) SetHosted(p Place, hosted bool) {
	m := b.hosts[p.Node]
	if m == nil {
		m = map[api.ServiceID]int{}
		b.hosts[p.Node] = m
	}
	id := p.Instance.Service()
	was := m[id]
	if hosted {
		m[id]++
	} else if m[id]--; m[id] <= 0 {
		delete(m, id)
	}
	if len(m) == 0 {
		delete(b.hosts, p.Node)
	}
	if (was > 0) != (was > 1 || hosted) {
		for _, r := range b.Nodes.For(id) {
			if r.Subscriber == p.Node {
				b.resolve(r)
			}
		}
	}
}

// SetBackend sets the backend at a place; the zero Backend removes it. Backend.Peer is ignored.
func (b *Registry) SetBackend(p Place, be api.Backend) {
	old := b.places[p]
	if old == be {
		return
	}
	id := p.Instance.Service()
	if old.Address.IsValid() && old.Address != be.Address && b.at[old.Address] == p {
		delete(b.at, old.Address)
		b.sourceChanged(old.Address)
	}
	if !be.Address.IsValid() {
		delete(b.places, p)
		delete(b.services[id].backends, p)
		if m := b.members[p.Node]; m != nil {
			delete(m.places, p)
		}
	} else {
		b.places[p] = be
		b.service(id).backends[p] = true
		if m := b.members[p.Node]; m != nil {
			m.places[p] = true
		}
		if b.at[be.Address] != p {
			b.at[be.Address] = p
			b.sourceChanged(be.Address)
		}
	}
	b.routeChanged(id, true)
}

func (b *Registry) PlacesOf(id api.InstanceID) (out []Place) {
	if s := b.services[id.Service()]; s != nil {
		for _, p := range sorted(s.backends) {
			if p.Instance == id {
				out = append(out, p)
			}
		}
	}
	return out
}

func (b *Registry) sourceChanged(a netip.Addr) {
	b.changed(interest.SourceOf(a))
	w := wire.Subscription{Address: a}
	b.resolveAll(b.Nodes.About(w))
	b.root.resolve(b, b.root.exports.About(w))
}

// SetMember adds or replaces a node on the overlay network. public are its endpoints for
// other clusters. It returns false if another node has the key.
func (b *Registry) SetMember(id api.NodeID, p api.Peer, public []netip.AddrPort) bool {
	if other, ok := b.keys[p.Key]; ok && other != id {
		return false
	}
	m := b.members[id]
	if m == nil {
		m = &member{places: map[Place]bool{}}
		b.members[id] = m
		for pl := range b.places { // only when the node is added
			if pl.Node == id {
				m.places[pl] = true
			}
		}
	}
	old := m.peer
	b.unlist(old)
	p.Node, p.Cluster, p.Rev = id, b.cluster, b.NextRev()
	m.peer, m.public = p, p
	m.public.Node, m.public.Endpoints = "", public
	b.keys[p.Key] = id
	for _, sub := range p.Subnets {
		b.subnets[sub] = id
	}
	if old.Key != p.Key || !slices.Equal(old.Subnets, p.Subnets) {
		b.peerChanged(old)
	}
	b.memberChanged(m)
	return true
}

// Member returns the record of a node on the overlay network, as sent to nodes of the cluster.
func (b *Registry) Member(id api.NodeID) (api.Peer, bool) {
	if m := b.members[id]; m != nil {
		return m.peer, true
	}
	return api.Peer{}, false
}

func (b *Registry) DropMember(id api.NodeID) {
	if m := b.members[id]; m != nil {
		delete(b.members, id)
		b.unlist(m.peer)
		b.memberChanged(m)
	}
}

func (b *Registry) unlist(p api.Peer) {
	delete(b.keys, p.Key)
	for _, sub := range p.Subnets {
		delete(b.subnets, sub)
	}
}

func (b *Registry) memberChanged(m *member) {
	b.peerChanged(m.peer)
	seen := map[api.ServiceID]bool{}
	for _, p := range sorted(m.places) {
		b.sourceChanged(b.places[p].Address)
		if id := p.Instance.Service(); !seen[id] {
			seen[id] = true
			b.routeChanged(id, true)
		}
	}
}

func (b *Registry) peerChanged(p api.Peer) {
	b.changed(interest.PeerOf(p.Key))
	for _, sub := range p.Subnets {
		w := wire.Subscription{Address: sub.Addr()}
		b.resolveAll(b.Nodes.About(w))
		b.root.resolve(b, b.root.exports.About(w))
	}
}

// Subscribe adds or renews a subscription of a node until a time. It ignores subscriptions
// above MaxSubscriptions.
func (b *Registry) Subscribe(n api.NodeID, w wire.Subscription, until time.Time) {
	if !b.Nodes.Has(n, w) && b.Nodes.Count(n) >= MaxSubscriptions {
		return
	}
	if b.Nodes.Subscribe(n, w, until) {
		b.resolve(ref{Subscriber: n, Subscription: w})
	}
}

func (b *Registry) Unsubscribe(n api.NodeID, all []wire.Subscription) {
	for _, w := range all {
		b.root.setNeeded(ref{Subscriber: n, Subscription: w}, false)
		b.Nodes.Unsubscribe(n, w)
	}
}

// Remove removes a node's subscriptions and the record of what it holds.
func (b *Registry) Remove(n api.NodeID) {
	b.Unsubscribe(n, b.Nodes.List(n))
	b.Nodes.Remove(n)
}

// Flush returns the changes for a node; see interest.Subscriptions.Flush.
func (b *Registry) Flush(n api.NodeID, limit int) (wire.Records, api.Digest) {
	return b.Nodes.Flush(n, limit, nodeView{b})
}

// Part returns a part of all records that a node should hold; see
// interest.Subscriptions.Part.
func (b *Registry) Part(n api.NodeID, after string) (wire.Records, wire.Span) {
	r, of, _ := b.Nodes.Part(n, after, wire.MaxPart, nodeView{b})
	return r, of
}
