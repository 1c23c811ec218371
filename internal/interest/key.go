package interest

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Kind is the type of a resource.
type Kind uint8

// The types of resources. None is the type of the zero Key, which means "no answer yet".
const (
	None Kind = iota
	Route
	Source
	Peer
	Refused
)

// Key names a resource: a route by Service, a source by Address, a peer by Peer, and a refusal by
// Subscription and Denied.
type Key struct {
	wire.Subscription
	Peer   api.PeerKey
	Kind   Kind
	Denied bool
}

// RouteOf returns the key of a service's route.
func RouteOf(s api.ServiceID) Key {
	return Key{Kind: Route, Subscription: wire.Subscription{Service: s}}
}

// SourceOf returns the key of an instance's address.
func SourceOf(a netip.Addr) Key {
	return Key{Kind: Source, Subscription: wire.Subscription{Address: a}}
}

// PeerOf returns the key of a node.
func PeerOf(k api.PeerKey) Key { return Key{Kind: Peer, Peer: k} }

// RefusalOf returns the key of the refusal of a subscription.
func RefusalOf(w wire.Subscription, denied bool) Key {
	return Key{Kind: Refused, Subscription: w, Denied: denied}
}

// Name returns the resource's name, by which spans are ordered.
func (k Key) Name() string {
	switch k.Kind {
	case Route:
		return wire.RouteName(k.Service)
	case Source:
		return wire.SourceName(k.Address)
	case Peer:
		return wire.PeerName(k.Peer)
	case Refused:
		return wire.RefusalName(k.Subscription)
	}
	return ""
}

// Compare orders keys.
func (k Key) Compare(o Key) int {
	return cmp.Or(cmp.Compare(k.Kind, o.Kind), k.Subscription.Compare(o.Subscription), slices.Compare(k.Peer[:], o.Peer[:]),
		cmp.Compare(bit(k.Denied), bit(o.Denied)))
}

func bit(is bool) int {
	if is {
		return 1
	}
	return 0
}

// KeysOf returns the keys of the resources in r, without the removals. Denied is false in the
// keys of refusals, because a subscriber holds at most one refusal per subscription.
func KeysOf(r wire.Records) map[Key]bool {
	keys := make(map[Key]bool, len(r.Routes)+len(r.Sources)+len(r.Peers)+len(r.Refused))
	for _, v := range r.Routes {
		keys[RouteOf(v.Service)] = true
	}
	for _, v := range r.Sources {
		keys[SourceOf(v.Address)] = true
	}
	for _, v := range r.Peers {
		keys[PeerOf(v.Key)] = true
	}
	for _, v := range r.Refused {
		keys[RefusalOf(v.Subscription, false)] = true
	}
	return keys
}

func remove(r *wire.Records, k Key) {
	switch k.Kind {
	case Route:
		r.RemovedRoutes = append(r.RemovedRoutes, k.Service)
	case Source:
		r.RemovedSources = append(r.RemovedSources, k.Address)
	case Peer:
		r.RemovedPeers = append(r.RemovedPeers, k.Peer)
	case Refused:
		r.RemovedRefusals = append(r.RemovedRefusals, k.Subscription)
	}
}

// Names finds services by name, ignoring case.
type Names map[string]map[api.ServiceID]bool

// Add adds a service.
func (n Names) Add(id api.ServiceID) { put(n, strings.ToLower(string(id)), id) }

// Remove removes a service.
func (n Names) Remove(id api.ServiceID) { take(n, strings.ToLower(string(id)), id) }

// Find returns the service with exactly that spelling, or else the only one that differs in
// case.
func (n Names) Find(spelt api.ServiceID) (api.ServiceID, bool) {
	all := n[strings.ToLower(string(spelt))]
	if all[spelt] {
		return spelt, true
	}
	if len(all) == 1 {
		for id := range all {
			return id, true
		}
	}
	return "", false
}

// All returns, in order, the services with a name, ignoring case.
func (n Names) All(spelt api.ServiceID) []api.ServiceID {
	return step.Keys(n[strings.ToLower(string(spelt))])
}

func put[K comparable, V comparable](m map[K]map[V]bool, k K, v V) {
	if m[k] == nil {
		m[k] = map[V]bool{}
	}
	m[k][v] = true
}

func take[K comparable, V comparable](m map[K]map[V]bool, k K, v V) {
	if delete(m[k], v); len(m[k]) == 0 {
		delete(m, k)
	}
}
