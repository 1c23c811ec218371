// Package routes is a cluster's book of the network: which instances stand behind
// which service and address, which nodes carry them, what nodes want to know of
// that, and what the root adds from other clusters and asks for in turn. It is
// pure and part of the cluster's core, which says what is true and sends what is
// to be told.
//
//	b := routes.New("munich")
//	b.SetBackend(routes.Place{Node: "n1", Instance: id}, api.Backend{…})
//	b.Want("n2", wire.Want{Address: semantic, For: client}, until)
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

// MaxSubscriptions bounds what one node may want at a time.
const MaxSubscriptions = 1 << 14

// Place is an instance on a node.
type Place struct {
	Node     api.NodeID
	Instance api.InstanceID
}

// Spec is what an instance's assignment says of the network.
type Spec struct {
	Rev       api.Revision // of the SLA
	Addresses api.ServiceAddresses
	Access    api.Access
	Ports     []api.PortMap
}

// Book is the network as the cluster knows it. It has one owner.
type Registry struct {
	cluster api.ClusterID
	ranges  wire.NetRanges
	shares  []netip.Prefix

	services map[api.ServiceID]*service
	names    interest.Names
	owners   map[netip.Addr]map[api.ServiceID]int // of semantic addresses; more than one for a moment only
	places   map[Place]api.Backend
	at       map[netip.Addr]Place // by instance's address
	members  map[api.NodeID]*member
	keys     map[api.PeerKey]api.NodeID
	subnets  map[netip.Prefix]api.NodeID
	hosts    map[api.NodeID]map[api.ServiceID]int // instances that a node has, or still has

	// Nodes has the nodes' subscriptions. They change by the methods of the Registry only.
	Nodes *interest.Subscriptions[api.NodeID]
	root  uplink
	rev   uint64
}

// service is one that has instances here, or that the root told of.
type service struct {
	specs    map[api.InstanceID]Spec
	newest   api.InstanceID
	backends map[Place]bool
	foreign  bool // the root told of it
}

// member is a node on the overlay network.
type member struct {
	peer   api.Peer
	public api.Peer // as other clusters may see it
	places map[Place]bool
}

// New is a book in which nothing is written.
func New(c api.ClusterID) *Registry {
	return &Registry{
		cluster: c, services: map[api.ServiceID]*service{}, names: interest.Names{}, owners: map[netip.Addr]map[api.ServiceID]int{},
		places: map[Place]api.Backend{}, at: map[netip.Addr]Place{}, members: map[api.NodeID]*member{},
		keys: map[api.PeerKey]api.NodeID{}, subnets: map[netip.Prefix]api.NodeID{}, hosts: map[api.NodeID]map[api.ServiceID]int{},
		Nodes: interest.New[api.NodeID](), root: newUplink(),
	}
}

// Begin has revisions begin above rev: above all that an earlier life gave.
func (b *Registry) Begin(rev uint64) { b.rev = max(b.rev, rev) }

// NextRev is a revision above all earlier ones.
func (b *Registry) NextRev() uint64 {
	b.rev++
	return b.rev
}

// Ranges are the installation's, as the root says; the zero value until it did.
func (b *Registry) Ranges() wire.NetRanges { return b.ranges }

// Shares are the cluster's parts of the instance network.
func (b *Registry) Shares() []netip.Prefix { return b.shares }

// SetRanges notes the installation's ranges and the cluster's shares.
func (b *Registry) SetRanges(r wire.NetRanges, shares []netip.Prefix) { b.ranges, b.shares = r, shares }

func (b *Registry) own(a netip.Addr) bool {
	for _, p := range b.shares {
		if p.Contains(a) {
			return true
		}
	}
	return false
}

// touchOwn notes that what nodes and the root hold under the key says something new.
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

// SetSpec notes an instance of the cluster's and what its SLA says.
func (b *Registry) SetSpec(id api.InstanceID, spec Spec) {
	s := b.service(id.Service())
	old, had := s.specs[id]
	if had && old.Rev == spec.Rev {
		return
	}
	spoke := s.newest
	s.specs[id] = spec
	b.index(id.Service(), spec.Addresses, +1)
	if had {
		b.index(id.Service(), old.Addresses, -1)
	}
	if spoke == "" || spoke == id || spec.Rev > s.specs[spoke].Rev {
		s.elect()
		b.accessChanged(id.Service())
	}
	b.routeChanged(id.Service(), true)
}

// DropSpec notes that the cluster has the instance no more.
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

// elect finds the instance whose SLA speaks for the service: the newest.
func (s *service) elect() {
	s.newest = ""
	for id, spec := range s.specs {
		if best := s.specs[s.newest]; s.newest == "" || spec.Rev > best.Rev || spec.Rev == best.Rev && id < s.newest {
			s.newest = id
		}
	}
}

// index counts who has which semantic address.
func (b *Registry) index(id api.ServiceID, a api.ServiceAddresses, by int) {
	each(a, func(addr netip.Addr) {
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

func each(a api.ServiceAddresses, fn func(netip.Addr)) {
	for _, addr := range []netip.Addr{a.RoundRobin, a.Closest} {
		if addr.IsValid() {
			fn(addr)
		}
	}
	for _, addr := range a.Instances {
		fn(addr)
	}
}

// owner is the service that has a semantic address, or none. Where two say so,
// one that the root told of goes first: it is who gives them.
func (b *Registry) owner(a netip.Addr) (best api.ServiceID) {
	for id := range b.owners[a] {
		s, than := b.services[id], b.services[best]
		if best == "" || s.foreign && !than.foreign || s.foreign == than.foreign && id < best {
			best = id
		}
	}
	return best
}

// saysOtherwise answers again what depends on the service's access list.
func (b *Registry) accessChanged(id api.ServiceID) {
	b.resolveAll(b.Nodes.About(wire.Subscription{Service: id}))
	each(b.addresses(id), func(a netip.Addr) { b.resolveAll(b.Nodes.About(wire.Subscription{Address: a})) })
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

// ComparePlaces orders places.
func ComparePlaces(a, b Place) int {
	return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Instance, b.Instance))
}

// routeChanged has all told that hold the service's route. own says that the
// change is the cluster's own.
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

// SetHosted notes whether a node has an instance, wanted there or not yet gone:
// only then it asks on behalf of its service.
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

// SetBackend notes what stands at a place; the zero Backend: nothing. Backend.Peer
// is the book's to fill in.
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

// PlacesOf are the places of which something is noted for an instance.
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

// SetMember notes a node on the overlay network, as its own cluster sees it, with
// the endpoints that other clusters may see. A key that another node has is
// refused: false.
func (b *Registry) SetMember(id api.NodeID, p api.Peer, public []netip.AddrPort) bool {
	if other, ok := b.keys[p.Key]; ok && other != id {
		return false
	}
	m := b.members[id]
	if m == nil {
		m = &member{places: map[Place]bool{}}
		b.members[id] = m
		for pl := range b.places { // once in a node's life
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

// Member is a node on the overlay network, as the cluster's others are told of it.
func (b *Registry) Member(id api.NodeID) (api.Peer, bool) {
	if m := b.members[id]; m != nil {
		return m.peer, true
	}
	return api.Peer{}, false
}

// DropMember takes a node off the overlay network.
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

// Subscribe adds or renews a subscription of a node until a time. Those above MaxSubscriptions
// are ignored.
func (b *Registry) Subscribe(n api.NodeID, w wire.Subscription, until time.Time) {
	if !b.Nodes.Has(n, w) && b.Nodes.Count(n) >= MaxSubscriptions {
		return
	}
	if b.Nodes.Subscribe(n, w, until) {
		b.resolve(ref{Subscriber: n, Subscription: w})
	}
}

// Unsubscribe removes subscriptions of a node.
func (b *Registry) Unsubscribe(n api.NodeID, all []wire.Subscription) {
	for _, w := range all {
		b.root.need(ref{Subscriber: n, Subscription: w}, false)
		b.Nodes.Unsubscribe(n, w)
	}
}

// Remove removes a node with all that it subscribes to and holds.
func (b *Registry) Remove(n api.NodeID) {
	b.Unsubscribe(n, b.Nodes.List(n))
	b.Nodes.Remove(n)
}

// Flush returns the changes for a node; see interest.Subscriptions.Flush.
func (b *Registry) Flush(n api.NodeID, room int) (wire.Records, api.Digest) {
	return b.Nodes.Flush(n, room, inside{b})
}

// Part returns a part of all that a node should hold; see interest.Subscriptions.Part.
func (b *Registry) Part(n api.NodeID, after string) (wire.Records, wire.Span) {
	r, of, _ := b.Nodes.Part(n, after, wire.MaxPart, inside{b})
	return r, of
}
