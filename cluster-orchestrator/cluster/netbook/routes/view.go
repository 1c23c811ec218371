package routes

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/wire"
)

// MaxBackends bounds the backends of a route. Backends in the cluster itself take precedence.
const MaxBackends = 1024

// addresses returns the semantic addresses of a service: those of its newest SLA, of its
// instances in the cluster and, from the root's route, of its other instances.
func (b *Registry) addresses(id api.ServiceID) api.ServiceAddresses {
	s := b.services[id]
	if s == nil {
		return api.ServiceAddresses{}
	}
	foreign := b.root.foreign.Routes[id].Addresses
	if s.newest == "" {
		return foreign
	}
	a := s.specs[s.newest].Addresses
	a.Instances = nil
	merge := func(m map[int]netip.Addr) {
		for n, addr := range m {
			if a.Instances == nil {
				a.Instances = map[int]netip.Addr{}
			}
			a.Instances[n] = addr
		}
	}
	merge(foreign.Instances)
	for _, spec := range s.specs {
		merge(spec.Addresses.Instances)
	}
	return a
}

// backends returns, in order, the cluster's own backends of a service that have started, and
// their peers.
func (b *Registry) backends(id api.ServiceID, of func(*member) api.Peer) (out []api.Backend, peers []api.Peer) {
	nodes := map[api.NodeID]bool{}
	for p := range b.services[id].backends {
		m := b.members[p.Node]
		be := b.places[p]
		if m == nil || be.State == api.BackendStarting {
			continue // unreachable
		}
		be.Peer = m.peer.Key
		out = append(out, be)
		nodes[p.Node] = true
	}
	slices.SortFunc(out, func(x, y api.Backend) int {
		return cmp.Or(cmp.Compare(x.Instance, y.Instance), cmp.Compare(x.Epoch, y.Epoch), x.Address.Compare(y.Address))
	})
	for n := range nodes {
		peers = append(peers, of(b.members[n]))
	}
	slices.SortFunc(peers, func(a, b api.Peer) int { return slices.Compare(a.Key[:], b.Key[:]) })
	return out, peers
}

// asleep reports whether an instance in the cluster sleeps.
func (s *service) asleep() bool {
	for _, spec := range s.specs {
		if spec.Asleep {
			return true
		}
	}
	return false
}

// limitBackends limits a route to MaxBackends. Backends that take new flows take precedence.
func limitBackends(r *api.Route) {
	if len(r.Backends) <= MaxBackends {
		return
	}
	slices.SortStableFunc(r.Backends, func(x, y api.Backend) int {
		switch up := x.State == api.BackendUp; {
		case up == (y.State == api.BackendUp):
			return 0
		case up:
			return -1
		}
		return 1
	})
	r.Backends = r.Backends[:MaxBackends]
	used := map[api.PeerKey]bool{}
	for _, be := range r.Backends {
		used[be.Peer] = true
	}
	r.Peers = slices.DeleteFunc(r.Peers, func(p api.Peer) bool { return !used[p.Key] })
}

func (m *member) forNodes() api.Peer { return m.peer }
func (m *member) forRoot() api.Peer  { return m.public }

// nodeView is the View for nodes: the cluster's own resources and those from the root.
type nodeView struct{ *Registry }

func (v nodeView) revOf(k interest.Key) uint64 { return v.Nodes.Rev(k, v.NextRev) }

func (v nodeView) Route(id api.ServiceID) (api.Route, bool) {
	s := v.services[id]
	if s == nil {
		return api.Route{}, false
	}
	r := api.Route{
		Service: id, Rev: v.revOf(interest.RouteOf(id)), Addresses: v.addresses(id), Access: v.access(id),
		Ports: v.root.foreign.Routes[id].Ports,
	}
	if s.newest != "" {
		r.Ports = s.specs[s.newest].Ports
	}
	r.Asleep = s.asleep()
	r.Backends, r.Peers = v.backends(id, (*member).forNodes)
	if f, ok := v.root.foreign.Routes[id]; ok {
		r.Backends = append(r.Backends, f.Backends...)
		r.Peers = append(r.Peers, f.Peers...)
		r.Asleep = r.Asleep || f.Asleep
	}
	limitBackends(&r)
	return r, true
}

func (v nodeView) Source(a netip.Addr) (wire.Source, bool) {
	s, ok := v.source(a, (*member).forNodes)
	if !ok {
		s, ok = v.root.foreign.Sources[a]
	}
	s.Rev = v.revOf(interest.SourceOf(a))
	return s, ok
}

// source returns the record of an address without its revision.
func (b *Registry) source(a netip.Addr, of func(*member) api.Peer) (wire.Source, bool) {
	p, ok := b.at[a]
	m := b.members[p.Node]
	if !ok || m == nil {
		return wire.Source{}, false
	}
	id := p.Instance.Service()
	return wire.Source{Address: a, Service: id, Access: b.access(id), Peer: of(m)}, true
}

func (v nodeView) Peer(k api.PeerKey) (api.Peer, bool) {
	if m := v.memberWith(k); m != nil {
		return m.peer, true
	}
	p, ok := v.root.foreign.Peers[k]
	return p, ok
}

func (b *Registry) memberWith(k api.PeerKey) *member {
	id, ok := b.keys[k]
	if !ok {
		return nil
	}
	return b.members[id]
}

// rootView is the View for the root: the cluster's own resources, without node ids and without
// endpoints that other clusters cannot use.
type rootView struct{ *Registry }

func (v rootView) revOf(k interest.Key) uint64 { return v.root.exports.Rev(k, v.NextRev) }

func (v rootView) Route(id api.ServiceID) (api.Route, bool) {
	s := v.services[id]
	if s == nil || s.newest == "" && len(s.backends) == 0 {
		return api.Route{}, false
	}
	r := api.Route{Service: id, Rev: v.revOf(interest.RouteOf(id)), Access: v.access(id)}
	if s.newest != "" {
		r.Addresses, r.Ports = s.specs[s.newest].Addresses, s.specs[s.newest].Ports
	}
	r.Asleep = s.asleep()
	r.Backends, r.Peers = v.backends(id, (*member).forRoot)
	for i := range r.Backends {
		r.Backends[i].Load = 0
	}
	limitBackends(&r)
	return r, true
}

func (v rootView) Source(a netip.Addr) (wire.Source, bool) {
	s, ok := v.source(a, (*member).forRoot)
	s.Rev = v.revOf(interest.SourceOf(a))
	return s, ok
}

func (v rootView) Peer(k api.PeerKey) (api.Peer, bool) {
	if m := v.memberWith(k); m != nil {
		return m.public, true
	}
	return api.Peer{}, false
}

// RouteOf returns a service's route as sent to nodes. Its revision is 0 if no node holds it.
func (b *Registry) RouteOf(id api.ServiceID) (api.Route, bool) { return nodeView{b}.Route(id) }
