package interest

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Replica is the subscriber's side: it holds the resources that the owner of Subscriptions sends,
// and their digest. The zero Replica is empty.
type Replica struct {
	Routes  map[api.ServiceID]api.Route
	Sources map[netip.Addr]wire.Source
	Peers   map[api.PeerKey]api.Peer
	Refused map[wire.Subscription]wire.Refusal
	digest  api.Digest
	cursor  Cursor[Key] // through all resources, during a resync

	subnets subnets                               // of Peers
	of      map[api.ServiceID]map[netip.Addr]bool // addresses in Sources by service
}

// Digest returns the digest of all resources.
func (h *Replica) Digest() api.Digest { return h.digest }

// Take applies removals and resources, and returns the keys that changed, in order.
func (h *Replica) Take(r wire.Records) []Key {
	if h.Routes == nil {
		h.Routes, h.Sources = map[api.ServiceID]api.Route{}, map[netip.Addr]wire.Source{}
		h.Peers, h.Refused = map[api.PeerKey]api.Peer{}, map[wire.Subscription]wire.Refusal{}
		h.subnets, h.of = newSubnets(), map[api.ServiceID]map[netip.Addr]bool{}
	}
	changed := map[Key]bool{}
	for _, k := range r.RemovedRoutes {
		drop(h, h.Routes, k, changed, RouteOf(k))
	}
	for _, k := range r.RemovedSources {
		take(h.of, h.Sources[k].Service, k)
		drop(h, h.Sources, k, changed, SourceOf(k))
	}
	for _, k := range r.RemovedPeers {
		h.subnets.remove(h.Peers[k])
		drop(h, h.Peers, k, changed, PeerOf(k))
	}
	for _, k := range r.RemovedRefusals {
		drop(h, h.Refused, k, changed, RefusalOf(k, false))
	}
	for _, v := range r.Routes {
		set(h, h.Routes, v.Service, v, changed, RouteOf(v.Service))
	}
	for _, v := range r.Sources {
		take(h.of, h.Sources[v.Address].Service, v.Address)
		set(h, h.Sources, v.Address, v, changed, SourceOf(v.Address))
		put(h.of, h.Sources[v.Address].Service, v.Address)
	}
	for _, v := range r.Peers {
		h.subnets.remove(h.Peers[v.Key])
		set(h, h.Peers, v.Key, v, changed, PeerOf(v.Key))
		h.subnets.add(h.Peers[v.Key])
	}
	for _, v := range r.Refused {
		set(h, h.Refused, v.Subscription, v, changed, RefusalOf(v.Subscription, false))
	}
	return slices.SortedFunc(maps.Keys(changed), Key.Compare)
}

// TakeAll applies the complete set of resources within a span: absent ones are removed. The cost
// of consecutive spans is proportional to their content.
func (h *Replica) TakeAll(r wire.Records, of wire.Span) []Key {
	for _, k := range h.cursor.Absent(of, h.all, KeysOf(r)) {
		remove(&r, k)
	}
	return h.Take(r)
}

func (h *Replica) all(yield func(Key) bool) {
	_ = each(h.Routes, RouteOf, yield) && each(h.Sources, SourceOf, yield) && each(h.Peers, PeerOf, yield) &&
		each(h.Refused, func(w wire.Subscription) Key { return RefusalOf(w, false) }, yield)
}

func each[K comparable, V any](m map[K]V, keyOf func(K) Key, yield func(Key) bool) bool {
	for k := range m {
		if !yield(keyOf(k)) {
			return false
		}
	}
	return true
}

type digester interface{ Digest() api.Digest }

func drop[K comparable, V digester](h *Replica, m map[K]V, k K, changed map[Key]bool, key Key) {
	if old, ok := m[k]; ok {
		h.digest = h.digest.Toggle(old.Digest())
		delete(m, k)
		changed[key] = true
	}
}

func set[K comparable, V digester](h *Replica, m map[K]V, k K, v V, changed map[Key]bool, key Key) {
	old, ok := m[k]
	if ok && old.Digest() == v.Digest() {
		return
	}
	if ok {
		h.digest = h.digest.Toggle(old.Digest())
	} else {
		h.cursor.Add(key)
	}
	h.digest = h.digest.Toggle(v.Digest())
	m[k] = v
	changed[key] = true
}

// PeerAt returns the peer (among Peers, not those within routes and sources) whose subnets contain
// the address, or nil. Among several it returns the one with the smallest subnet, then the one
// with the highest Rev.
func (h *Replica) PeerAt(a netip.Addr) (best *api.Peer) {
	for _, k := range h.subnets.at(a) {
		if p := h.Peers[k]; best == nil || cmp.Or(cmp.Compare(p.Rev, best.Rev), slices.Compare(k[:], best.Key[:])) > 0 {
			best = &p
		}
	}
	return best
}

// SourcesOf returns, in order, the addresses of a service.
func (h *Replica) SourcesOf(id api.ServiceID) []netip.Addr {
	return slices.SortedFunc(maps.Keys(h.of[id]), netip.Addr.Compare)
}
