// Package table keeps what was applied to the data plane and computes changes. The caller marks what a
// step touched, computes the desired entries of that part, and sets them. Take returns the difference.
//
//	t.Touched.Services.Add(id)
//	t.SetSource(address, source, true)
//	change, any := t.Take()
package table

import (
	"cmp"
	"maps"
	"net/netip"
	"reflect"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
)

// Set is a set of keys.
type Set[K comparable] map[K]struct{}

// Add adds keys.
func (s Set[K]) Add(keys ...K) {
	for _, k := range keys {
		s[k] = struct{}{}
	}
}

// Touched is what a step touched. New makes its maps.
type Touched struct {
	All       bool // everything
	Silent    bool // the plane is replaced as a whole: Take returns nothing
	Endpoints Set[netip.Addr]
	Services  Set[api.ServiceID]
	Sources   Set[netip.Addr]
	Access    Set[api.ServiceID] // services whose permissions changed
	Peers     Set[api.PeerKey]
	End       Set[netip.Addr] // remote instances whose flows must end
	Retry     Set[netip.Addr] // instances whose unanswered flows must end
}

// Table is the applied state of the plane. The caller owns Touched.
type Table struct {
	Touched   Touched
	node      plane.Node
	endpoints map[netip.Addr]plane.Endpoint
	services  map[netip.Addr]plane.Service
	addresses map[api.ServiceID][]netip.Addr // semantic addresses of each service
	sources   map[netip.Addr]plane.Source
	pairs     map[plane.Ident]Set[plane.Pair] // under both ends
	idents    map[api.ServiceID]plane.Ident   // of the services in pairs
	peers     map[api.PeerKey]plane.Peer
	change    plane.Change
}

// New returns the table of an empty plane.
func New() *Table {
	return &Table{
		Touched: Touched{
			Endpoints: Set[netip.Addr]{}, Services: Set[api.ServiceID]{}, Sources: Set[netip.Addr]{}, Access: Set[api.ServiceID]{},
			Peers: Set[api.PeerKey]{}, End: Set[netip.Addr]{}, Retry: Set[netip.Addr]{},
		},
		endpoints: map[netip.Addr]plane.Endpoint{},
		services:  map[netip.Addr]plane.Service{},
		addresses: map[api.ServiceID][]netip.Addr{},
		sources:   map[netip.Addr]plane.Source{},
		pairs:     map[plane.Ident]Set[plane.Pair]{},
		idents:    map[api.ServiceID]plane.Ident{},
		peers:     map[api.PeerKey]plane.Peer{},
	}
}

// Take returns the change since the last Take, and clears Touched.
func (t *Table) Take() (ch plane.Change, ok bool) {
	d := &t.Touched
	ch = t.change
	ch.End = sorted.Addrs(d.End)
	ch.Retry = sorted.Addrs(d.Retry)
	ok = !d.Silent && !reflect.DeepEqual(ch, plane.Change{})
	t.change = plane.Change{}
	d.All, d.Silent = false, false
	clear(d.Endpoints)
	clear(d.Services)
	clear(d.Sources)
	clear(d.Access)
	clear(d.Peers)
	clear(d.End)
	clear(d.Retry)
	return ch, ok
}

// SetNode sets the node's configuration.
func (t *Table) SetNode(n plane.Node) {
	if !reflect.DeepEqual(n, t.node) {
		t.node = n
		t.change.Node = &n
	}
}

// SetEndpoint sets the endpoint at an address; ok is false for none.
func (t *Table) SetEndpoint(a netip.Addr, e plane.Endpoint, ok bool) {
	set(t.endpoints, a, e, ok, func(a, b plane.Endpoint) bool { return reflect.DeepEqual(a, b) }, &t.change.SetEndpoints, &t.change.DropEndpoints)
}

// SetSource sets the source at a remote address; ok is false for none.
func (t *Table) SetSource(a netip.Addr, s plane.Source, ok bool) {
	set(t.sources, a, s, ok, func(a, b plane.Source) bool { return a == b }, &t.change.SetSources, &t.change.DropSources)
}

// SetPeer sets a peer; ok is false for none. dropped means that the plane had the peer.
func (t *Table) SetPeer(k api.PeerKey, p plane.Peer, ok bool) (dropped bool) {
	n := len(t.change.DropPeers)
	set(t.peers, k, p, ok, func(a, b plane.Peer) bool { return reflect.DeepEqual(a, b) }, &t.change.SetPeers, &t.change.DropPeers)
	return len(t.change.DropPeers) > n
}

func set[K comparable, V any](known map[K]V, k K, v V, ok bool, equal func(a, b V) bool, sets *[]V, drops *[]K) {
	switch was, had := known[k]; {
	case ok && (!had || !equal(v, was)):
		known[k] = v
		*sets = append(*sets, v)
	case !ok && had:
		delete(known, k)
		*drops = append(*drops, k)
	}
}

// SetServices sets the plane's entries of services. It must get all services that a step touched at once,
// because an address may move from one to another.
func (t *Table) SetServices(of map[api.ServiceID][]plane.Service) {
	if len(of) == 0 {
		return
	}
	want, had := map[netip.Addr]plane.Service{}, Set[netip.Addr]{}
	for _, id := range sorted.Ordered(of) {
		had.Add(t.addresses[id]...)
		delete(t.addresses, id)
		for _, p := range of[id] {
			want[p.Address] = p
			t.addresses[id] = append(t.addresses[id], p.Address)
		}
	}
	for _, v := range sorted.Addrs(had) {
		if _, ok := want[v]; ok {
			continue
		}
		if _, ok := t.services[v]; ok {
			delete(t.services, v)
			t.change.DropServices = append(t.change.DropServices, v)
		}
	}
	for _, v := range sorted.Addrs(want) {
		p := want[v]
		if was, ok := t.services[v]; ok && was.Ident == p.Ident && slices.Equal(was.Backends, p.Backends) {
			continue
		}
		t.services[v] = p
		t.change.SetServices = append(t.change.SetServices, p)
	}
}

// Permissions are the pairs of which one service is an end.
type Permissions struct {
	Service api.ServiceID
	Ident   plane.Ident // 0: the service does not exist any more
	Pairs   Set[plane.Pair]
}

// SetPairs sets the allowed pairs of some services.
func (t *Table) SetPairs(of []Permissions) {
	if len(of) == 0 {
		return
	}
	allow, deny := Set[plane.Pair]{}, Set[plane.Pair]{}
	for _, x := range of {
		ident := x.Ident
		if ident == 0 {
			ident = t.idents[x.Service]
			delete(t.idents, x.Service)
		} else {
			t.idents[x.Service] = ident
		}
		for p := range t.pairs[ident] {
			if _, ok := x.Pairs[p]; !ok {
				deny.Add(p)
				t.removePair(p.From, p)
				t.removePair(p.To, p)
			}
		}
		for p := range x.Pairs {
			if _, ok := t.pairs[ident][p]; !ok {
				allow.Add(p)
				t.addPair(p.From, p)
				t.addPair(p.To, p)
			}
		}
	}
	for p := range allow { // it may have been denied for the other end
		delete(deny, p)
	}
	t.change.Allow, t.change.Deny = SortPairs(allow), SortPairs(deny)
}

func (t *Table) addPair(end plane.Ident, p plane.Pair) {
	if t.pairs[end] == nil {
		t.pairs[end] = Set[plane.Pair]{}
	}
	t.pairs[end].Add(p)
}

func (t *Table) removePair(end plane.Ident, p plane.Pair) {
	if delete(t.pairs[end], p); len(t.pairs[end]) == 0 {
		delete(t.pairs, end)
	}
}

// SortPairs lists a set in order.
func SortPairs(set Set[plane.Pair]) []plane.Pair {
	return sorted.Keys(set, func(a, b plane.Pair) int {
		return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
}

// Sources lists, in no order, the addresses that the plane has as sources.
func (t *Table) Sources() []netip.Addr { return slices.Collect(maps.Keys(t.sources)) }

// ResendEndpoint applies an endpoint again, because the plane seems to have lost it.
func (t *Table) ResendEndpoint(a netip.Addr) {
	t.endpoints[a] = plane.Endpoint{}
	t.Touched.Endpoints.Add(a)
}

// ResendSource applies a source again, because the plane seems to have lost it.
func (t *Table) ResendSource(a netip.Addr) {
	if _, ok := t.sources[a]; ok {
		t.sources[a] = plane.Source{}
		t.Touched.Sources.Add(a)
	}
}

// ResendService applies a semantic address of a service again, because the plane seems to have lost it.
func (t *Table) ResendService(a netip.Addr, id api.ServiceID) {
	if _, ok := t.services[a]; ok {
		t.services[a] = plane.Service{}
		t.Touched.Services.Add(id)
	}
}

// ResendPeer applies a peer again, because the plane seems to have lost it.
func (t *Table) ResendPeer(k api.PeerKey) {
	t.peers[k] = plane.Peer{}
	t.Touched.Peers.Add(k)
}
