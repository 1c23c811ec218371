package netbook

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
	"github.com/treeline-edge/treeline/internal/wire"
)

// Only records that match a subscription are kept, within these limits, so that a hostile cluster
// takes no more memory than an honest one.
const (
	maxEndpoints  = 32      // of one peer
	maxSubnets    = 8       // of one peer
	maxChain      = 4       // certificates of one peer
	maxText       = 8 << 10 // bytes of a certificate, or of another text
	spareBackends = 16      // of a route, in addition to twice the instances: those that are ending
)

// onlyAsked returns the records that match the subscriptions sent to a cluster, and whether there
// were others, for example for subscriptions of an earlier process of the root. It truncates
// records that exceed a limit but keeps their revisions, because the digest depends only on these.
func (c *call) onlyAsked(cl *cluster, r wire.Records) (_ wire.Records, more bool) {
	r.Routes = filter(r.Routes, &more, func(v *api.Route) bool { return cl.asked.Has(wire.Subscription{Service: v.Service}) })
	r.Sources = filter(r.Sources, &more, func(v *wire.Source) bool { return cl.asked.Has(wire.Subscription{Address: v.Address}) })
	r.Peers = filter(r.Peers, &more, func(v *api.Peer) bool {
		return slices.ContainsFunc(v.Subnets, func(p netip.Prefix) bool { return cl.asked.Has(wire.Subscription{Address: p.Addr()}) })
	})
	r.Refused = filter(r.Refused, &more, func(v *wire.Refusal) bool { return cl.asked.Has(v.Subscription) })
	for i := range r.Routes {
		v := &r.Routes[i]
		limitRoute(v, spareBackends+2*c.Instances(cl.id, v.Service))
	}
	for i := range r.Sources {
		s := &r.Sources[i]
		s.Access = api.Access{} // from the SLA only
		if limitPeer(&s.Peer); len(s.Service) > maxName {
			s.Service = ""
		}
	}
	for i := range r.Peers {
		limitPeer(&r.Peers[i])
	}
	return r, more
}

// filter returns the elements that keep accepts. It sets more if it removed any.
func filter[V any](all []V, more *bool, keep func(*V) bool) (out []V) {
	for i := range all {
		if keep(&all[i]) {
			out = append(out, all[i])
		} else {
			*more = true
		}
	}
	return out
}

func limitRoute(r *api.Route, backends int) {
	r.Access, r.Addresses, r.Ports = api.Access{}, api.ServiceAddresses{}, nil // from the SLA only
	var more bool
	r.Backends = limit(filter(r.Backends, &more, func(be *api.Backend) bool {
		return be.Instance.Service() == r.Service && len(be.Instance) <= maxName && be.Address.Is4() &&
			(be.State == api.BackendUp || be.State == api.BackendDraining || be.State == api.BackendStarting)
	}), backends)
	used := map[api.PeerKey]bool{}
	for _, be := range r.Backends {
		used[be.Peer] = true
	}
	r.Peers = filter(slices.Clone(r.Peers), &more, func(p *api.Peer) bool {
		limitPeer(p)
		once := used[p.Key]
		delete(used, p.Key)
		return once
	})
}

func limitPeer(p *api.Peer) {
	p.Node, p.Cluster = "", "" // permit sets them
	p.Subnets, p.Endpoints, p.Chain = limit(p.Subnets, maxSubnets), limit(p.Endpoints, maxEndpoints), limit(p.Chain, maxChain)
	if len(p.Proof) > maxText || len(p.Relay.Addr) > maxName ||
		slices.ContainsFunc(p.Chain, func(c []byte) bool { return len(c) > maxText }) {
		p.Proof, p.Chain, p.Relay = nil, nil, api.Relay{} // no node accepts it
	}
	if p.Coord != nil && !vivaldi.Valid(p.Coord) {
		p.Coord = nil
	}
}

// limit returns the first n elements without keeping the others in memory.
func limit[V any](all []V, n int) []V {
	if len(all) <= n {
		return all
	}
	return slices.Clone(all[:n])
}
