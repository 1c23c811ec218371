package routes

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Wanted is an instance that packets wait for.
type Wanted struct {
	wire.Subscription
	Service api.ServiceID
	Number  int // AnyNumber: any instance
}

// AnyNumber is the number of a Wanted for any instance of the service.
const AnyNumber = -1

// Demand returns what a node's demand is for. ok is false if the node may not use the address: it hosts
// no instance of the subscriber, or that may not call the service.
func (b *Registry) Demand(n api.NodeID, w wire.Subscription) (x Wanted, ok bool) {
	k, _ := b.answer(ref{Subscriber: n, Subscription: w})
	if k.Kind != interest.Route || !w.Address.IsValid() {
		return x, false
	}
	return Wanted{w, k.Service, b.numberAt(k.Service, w.Address)}, true
}

// Wanted returns what the root's demand for a semantic address is for.
func (b *Registry) Wanted(a netip.Addr) (x Wanted, ok bool) {
	id := b.owner(a)
	return Wanted{wire.Subscription{Address: a}, id, b.numberAt(id, a)}, id != ""
}

// numberAt returns the number of the instance that has an address of its own, or AnyNumber.
func (b *Registry) numberAt(id api.ServiceID, a netip.Addr) int {
	for n, own := range b.addresses(id).Instances {
		if own == a {
			return n
		}
	}
	return AnyNumber
}

// Forward sends a demand to the root with the next report, if instances of the service sleep in other
// clusters. It reports whether it does.
func (b *Registry) Forward(w wire.Subscription) bool {
	id := b.owner(w.Address)
	if !b.root.foreign.Routes[id].Asleep || len(b.root.demands) >= wire.MaxDemands {
		return false
	}
	b.root.demands[w] = true
	return true
}
