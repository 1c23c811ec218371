package routes

import (
	"net/netip"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

type ref = interest.Ref[api.NodeID]

func (b *Registry) resolveAll(refs []ref) {
	for _, r := range refs {
		b.resolve(r)
	}
}

// resolve answers a subscription again. If only the root can answer it, an earlier answer
// stays until then, as long as its resource exists.
func (b *Registry) resolve(r ref) {
	k, upward := b.answer(r)
	b.root.setNeeded(r, upward)
	if k != (interest.Key{}) || !b.exists(b.Nodes.AnswerOf(r.Subscriber, r.Subscription)) {
		b.Nodes.Answer(r.Subscriber, r.Subscription, k)
	}
}

// exists reports whether the resource of an answer still exists.
func (b *Registry) exists(k interest.Key) bool {
	ok := k.Kind == interest.Refused
	switch k.Kind {
	case interest.Route:
		ok = b.services[k.Service] != nil
	case interest.Source:
		_, ok = nodeView{b}.Source(k.Address)
	case interest.Peer:
		_, ok = nodeView{b}.Peer(k.Peer)
	}
	return ok
}

// answer returns the resource that answers a subscription, or the zero Key if only the root
// can answer it. upward reports whether the subscription must also be sent to the root.
func (b *Registry) answer(r ref) (k interest.Key, upward bool) {
	w := r.Subscription
	if w.For != "" && b.hosts[r.Subscriber][w.For] == 0 {
		return interest.RefusalOf(w, true), false
	}
	switch a := w.Address; {
	case a.IsValid() == (w.Service != ""):
		return interest.RefusalOf(w, false), false
	case w.For == "" && (w.Service != "" || !b.ranges.Instances.Contains(a)):
		return interest.RefusalOf(w, true), false
	case w.Service != "":
		id, _ := b.names.Find(w.Service)
		return b.routeFor(w, id), true
	case b.ranges.Services.Contains(a):
		return b.routeFor(w, b.owner(a)), true
	case !b.ranges.Instances.Contains(a):
		return interest.RefusalOf(w, false), false
	case w.For == "":
		return b.peerAt(w)
	}
	return b.sourceAt(w)
}

// routeFor returns the route of a service, or a refusal if w.For may not call it.
func (b *Registry) routeFor(w wire.Subscription, id api.ServiceID) interest.Key {
	if b.services[id] == nil {
		return b.rootRefusal(w)
	}
	if !api.MayCall(w.For, b.access(w.For), id, b.access(id)) {
		return denied(w, id)
	}
	return interest.RouteOf(id)
}

// denied returns the refusal of a service that w.For may not reach. Only services of the same
// tenant learn that it exists.
func denied(w wire.Subscription, id api.ServiceID) interest.Key {
	return interest.RefusalOf(w, w.For.Tenant() == id.Tenant())
}

// rootRefusal returns the root's refusal, or the zero Key if the root has not answered.
func (b *Registry) rootRefusal(w wire.Subscription) interest.Key {
	if r, ok := b.root.foreign.Refused[w]; ok {
		return interest.RefusalOf(w, r.Denied)
	}
	return interest.Key{}
}

func (b *Registry) peerAt(w wire.Subscription) (k interest.Key, upward bool) {
	if b.inShares(w.Address) {
		if id, ok := b.subnets[netip.PrefixFrom(w.Address, b.ranges.Subnet).Masked()]; ok {
			return interest.PeerOf(b.members[id].peer.Key), false
		}
		return interest.RefusalOf(w, false), false
	}
	if p := b.root.foreign.PeerAt(w.Address); p != nil {
		return interest.PeerOf(p.Key), true
	}
	return b.rootRefusal(w), true
}

func (b *Registry) sourceAt(w wire.Subscription) (k interest.Key, upward bool) {
	if b.inShares(w.Address) {
		p, ok := b.at[w.Address]
		if !ok || b.members[p.Node] == nil {
			return interest.RefusalOf(w, false), false
		}
		return b.sourceFor(w, p.Instance.Service(), b.access(p.Instance.Service())), false
	}
	if s, ok := b.root.foreign.Sources[w.Address]; ok {
		return b.sourceFor(w, s.Service, s.Access), true
	}
	return b.rootRefusal(w), true
}

// sourceFor returns the source of an address, or a refusal if w.For may neither call its service nor
// be called by it.
func (b *Registry) sourceFor(w wire.Subscription, id api.ServiceID, a api.Access) interest.Key {
	of := b.access(w.For)
	if !api.MayCall(id, a, w.For, of) && !api.MayCall(w.For, of, id, a) {
		return denied(w, id)
	}
	return interest.SourceOf(w.Address)
}

// access returns the access list of a service's newest SLA in the cluster, or else the one in
// the route from the root. An unknown service is closed.
func (b *Registry) access(id api.ServiceID) api.Access {
	s := b.services[id]
	switch {
	case s == nil:
		return api.Access{Closed: true}
	case s.newest != "":
		return s.specs[s.newest].Access
	}
	return b.root.foreign.Routes[id].Access
}
