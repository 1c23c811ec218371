package interest

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Holder is the other side: it takes in what a Book's owner tells, and knows the
// digest of what it holds. The zero Holder holds nothing.
type Holder struct {
	Routes  map[api.ServiceID]api.Route
	Sources map[netip.Addr]api.Source
	Peers   map[api.PeerKey]api.Peer
	Refused map[api.Want]api.Refusal
	digest  api.Digest
}

// Digest is of all that is held.
func (h *Holder) Digest() api.Digest { return h.digest }

// Take takes records in, and returns what they change, in order.
func (h *Holder) Take(r api.Records) []Key {
	if h.Routes == nil {
		h.Routes, h.Sources = map[api.ServiceID]api.Route{}, map[netip.Addr]api.Source{}
		h.Peers, h.Refused = map[api.PeerKey]api.Peer{}, map[api.Want]api.Refusal{}
	}
	changed := map[Key]bool{}
	for _, k := range r.Gone {
		drop(h, h.Routes, k, changed, RouteOf(k))
	}
	for _, k := range r.GoneSources {
		drop(h, h.Sources, k, changed, SourceOf(k))
	}
	for _, k := range r.GonePeers {
		drop(h, h.Peers, k, changed, PeerOf(k))
	}
	for _, k := range r.Answered {
		drop(h, h.Refused, k, changed, RefusalOf(k, false))
	}
	for _, v := range r.Routes {
		set(h, h.Routes, v.Service, v, changed, RouteOf(v.Service))
	}
	for _, v := range r.Sources {
		set(h, h.Sources, v.Address, v, changed, SourceOf(v.Address))
	}
	for _, v := range r.Peers {
		set(h, h.Peers, v.Key, v, changed, PeerOf(v.Key))
	}
	for _, v := range r.Refused {
		set(h, h.Refused, v.Want, v, changed, RefusalOf(v.Want, false))
	}
	keys := make([]Key, 0, len(changed))
	for k := range changed {
		keys = append(keys, k)
	}
	slices.SortFunc(keys, CompareKeys)
	return keys
}

// TakeAll is Take of records that are all there are within a span: what is absent
// there is gone.
func (h *Holder) TakeAll(r api.Records, of api.Span) []Key {
	r.Gone = absent(r.Gone, h.Routes, r.Routes, of, api.RouteName, func(v api.Route) api.ServiceID { return v.Service })
	r.GoneSources = absent(r.GoneSources, h.Sources, r.Sources, of, api.SourceName, func(v api.Source) netip.Addr { return v.Address })
	r.GonePeers = absent(r.GonePeers, h.Peers, r.Peers, of, api.PeerName, func(v api.Peer) api.PeerKey { return v.Key })
	r.Answered = absent(r.Answered, h.Refused, r.Refused, of, api.RefusalName, func(v api.Refusal) api.Want { return v.Want })
	return h.Take(r)
}

// absent adds to gone what is held within the span and is not among all.
func absent[K comparable, V any](gone []K, have map[K]V, all []V, of api.Span, name func(K) string, keyOf func(V) K) []K {
	present := make(map[K]bool, len(all))
	for _, v := range all {
		present[keyOf(v)] = true
	}
	for k := range have {
		if !present[k] && of.Has(name(k)) {
			gone = append(gone, k)
		}
	}
	return gone
}

type digester interface{ Digest() api.Digest }

func drop[K comparable, V digester](h *Holder, m map[K]V, k K, changed map[Key]bool, key Key) {
	if old, ok := m[k]; ok {
		h.digest = h.digest.Toggle(old.Digest())
		delete(m, k)
		changed[key] = true
	}
}

func set[K comparable, V digester](h *Holder, m map[K]V, k K, v V, changed map[Key]bool, key Key) {
	old, ok := m[k]
	if ok && old.Digest() == v.Digest() {
		return
	}
	if ok {
		h.digest = h.digest.Toggle(old.Digest())
	}
	h.digest = h.digest.Toggle(v.Digest())
	m[k] = v
	changed[key] = true
}

// PeerAt is a node that was told by itself and has the address in its subnets, or nil.
func (h *Holder) PeerAt(a netip.Addr) *api.Peer {
	for _, p := range h.Peers {
		if slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Contains(a) }) {
			return &p
		}
	}
	return nil
}

// SourcesOf lists, in order, the addresses that belong to a service.
func (h *Holder) SourcesOf(id api.ServiceID) (out []netip.Addr) {
	for a, s := range h.Sources {
		if s.Service == id {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}
