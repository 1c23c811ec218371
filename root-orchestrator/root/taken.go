package root

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/vivaldi"
)

// What the root keeps of a cluster's exports is bounded by what it asked for, and
// by what it placed there: a hostile cluster has no more of its memory than an
// honest one could.
const (
	mostEndpoints = 32      // of one peer
	mostSubnets   = 8       // the same
	longestText   = 8 << 10 // of a peer's certificates, each, and of other texts
	mostChain     = 4       // certificates of one peer
	spareBackends = 16      // of a route, beyond twice the instances there: old ones on their way out
)

// askedOnly is what was asked for of what a cluster says, and whether there was
// more: it may have been asked by an earlier life of the root. Records that are
// larger than they can be are cut, and keep their revision, which is all that
// digests are of.
func (c *Core) askedOnly(cl *cluster, r api.Records) (_ api.Records, more bool) {
	asked := cl.net.asked
	r.Routes = kept(r.Routes, &more, func(v *api.Route) bool { return asked[api.Want{Service: v.Service}] })
	r.Sources = kept(r.Sources, &more, func(v *api.Source) bool { return asked[api.Want{Address: v.Address}] })
	r.Peers = kept(r.Peers, &more, func(v *api.Peer) bool {
		return slices.ContainsFunc(v.Subnets, func(p netip.Prefix) bool { return asked[api.Want{Address: p.Addr()}] })
	})
	r.Refused = kept(r.Refused, &more, func(v *api.Refusal) bool { return asked[v.Want] })
	for i := range r.Routes {
		c.cutRoute(cl, &r.Routes[i])
	}
	for i := range r.Sources {
		s := &r.Sources[i]
		s.Access = api.Access{} // the root's to say, as a route's is
		if cutPeer(&s.Peer); len(s.Service) > longestName {
			s.Service = ""
		}
	}
	for i := range r.Peers {
		cutPeer(&r.Peers[i])
	}
	return r, more
}

func kept[V any](all []V, more *bool, fits func(*V) bool) (out []V) {
	for i := range all {
		if fits(&all[i]) {
			out = append(out, all[i])
		} else {
			*more = true
		}
	}
	return out
}

func (c *Core) cutRoute(cl *cluster, r *api.Route) {
	r.Access, r.Addresses, r.Ports = api.Access{}, api.ServiceAddresses{}, nil
	most := spareBackends
	if s := c.services[r.Service]; s != nil {
		for _, in := range s.instances {
			if in.Cluster == cl.Info.ID || in.Vacating == cl.Info.ID || in.trialAt(cl) != nil {
				most += 2
			}
		}
	}
	var none bool
	r.Peers = slices.Clone(r.Peers)
	r.Backends = kept(r.Backends, &none, func(be *api.Backend) bool {
		return be.Instance.Service() == r.Service && len(be.Instance) <= longestName && be.Address.Is4() &&
			(be.State == api.BackendUp || be.State == api.BackendDraining || be.State == api.BackendStarting)
	})
	r.Backends = atMost(r.Backends, most)
	behind := map[api.PeerKey]bool{}
	for _, be := range r.Backends {
		behind[be.Peer] = true
	}
	r.Peers = kept(r.Peers, &none, func(p *api.Peer) bool {
		cutPeer(p)
		once := behind[p.Key]
		delete(behind, p.Key)
		return once
	})
}

func cutPeer(p *api.Peer) {
	p.Node, p.Cluster = "", "" // said where it is told on
	p.Subnets, p.Endpoints, p.Chain = atMost(p.Subnets, mostSubnets), atMost(p.Endpoints, mostEndpoints), atMost(p.Chain, mostChain)
	if len(p.Proof) > longestText || len(p.Relay.Addr) > longestName ||
		slices.ContainsFunc(p.Chain, func(c []byte) bool { return len(c) > longestText }) {
		p.Proof, p.Chain, p.Relay = nil, nil, api.Relay{} // nobody believes it
	}
	if p.Coord != nil && !vivaldi.Valid(p.Coord) {
		p.Coord = nil
	}
}

// atMost is the first n of a list, without the memory of the others.
func atMost[V any](all []V, n int) []V {
	if len(all) <= n {
		return all
	}
	return slices.Clone(all[:n])
}
