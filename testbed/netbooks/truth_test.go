package netbooks

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

// truth is the complete state, which no tier of the installation has.
type truth struct {
	services map[api.ServiceID]api.Service
	at       map[netip.Addr]place // by instance's address
}

type place struct {
	node     *node
	instance api.InstanceID
	epoch    api.Epoch
}

func (w *world) truth() truth {
	tr := truth{services: map[api.ServiceID]api.Service{}, at: map[netip.Addr]place{}}
	for _, s := range w.root.core.Services("") {
		tr.services[s.ID] = s
	}
	for _, n := range w.nodes {
		if n.off {
			continue
		}
		for id, o := range n.has {
			if other, twice := tr.at[o.Address]; twice {
				w.t.Fatalf("%s and %s have the same address %s", id, other.instance, o.Address)
			}
			tr.at[o.Address] = place{n, id, o.Epoch}
		}
	}
	return tr
}

func (tr truth) hosted(n *node, s api.ServiceID) bool {
	for id := range n.has {
		if id.Service() == s {
			return true
		}
	}
	return false
}

func (tr truth) access(s api.ServiceID) api.Access {
	if v, ok := tr.services[s]; ok {
		return v.Spec.Access()
	}
	return api.Access{Closed: true}
}

// answer returns what a node should have because of a subscription, as one line.
func (tr truth) answer(n *node, w wire.Subscription) string {
	if w.For == "" {
		for _, other := range n.w.nodes {
			if other.lease != nil && other.lease.Subnet.Addr() == w.Address && !other.off {
				return "peer " + string(other.id)
			}
		}
		return "refused"
	}
	if !tr.hosted(n, w.For) {
		return "denied"
	}
	if p, ok := tr.at[w.Address]; ok {
		s := p.instance.Service()
		if api.MayCall(w.For, tr.access(w.For), s, tr.access(s)) || api.MayCall(s, tr.access(s), w.For, tr.access(w.For)) {
			return fmt.Sprintf("source %s %s", s, p.node.id)
		}
		return tr.denied(w, s)
	}
	var id api.ServiceID
	for _, s := range step.Keys(tr.services) {
		a := tr.services[s].Addresses
		if strings.EqualFold(string(s), string(w.Service)) || a.RoundRobin == w.Address && w.Address.IsValid() || a.Closest == w.Address && w.Address.IsValid() {
			id = s
		}
		for _, addr := range a.Instances {
			if addr == w.Address {
				id = s
			}
		}
	}
	if id == "" {
		return "refused"
	}
	if !api.MayCall(w.For, tr.access(w.For), id, tr.access(id)) {
		return tr.denied(w, id)
	}
	var backends []string
	for a, p := range tr.at {
		if p.instance.Service() == id {
			backends = append(backends, fmt.Sprintf("%s@%s=%s/%s", p.instance, p.epoch, a, p.node.id))
		}
	}
	slices.Sort(backends)
	return fmt.Sprintf("route %s %s %v", id, tr.services[id].Addresses.RoundRobin, backends)
}

func (tr truth) denied(w wire.Subscription, s api.ServiceID) string {
	if w.For.Tenant() == s.Tenant() {
		return "denied"
	}
	return "refused"
}

// said returns what the node has because of a subscription, in the same format.
func (n *node) said(w wire.Subscription) string {
	if r, ok := n.held.Refused[w]; ok {
		if r.Denied {
			return "denied"
		}
		return "refused"
	}
	node := func(p api.Peer) string {
		if n.w.nodes[api.NodeID(strings.TrimRight(string(p.Key[:]), "\x00"))] == nil {
			n.w.t.Fatalf("a peer that is not a node: %+v", p)
		}
		other := n.w.nodes[api.NodeID(strings.TrimRight(string(p.Key[:]), "\x00"))]
		outside := other.cluster != n.cluster
		if outside != (p.Node == "") || outside && slices.Contains(p.Endpoints, n.self().Endpoints[0]) || p.Relay.Addr != string(other.cluster)+":7444" {
			n.w.t.Fatalf("%s received the wrong peer %+v", n.id, p)
		}
		return string(other.id)
	}
	if w.For == "" {
		if p := n.held.PeerAt(w.Address); p != nil {
			return "peer " + node(*p)
		}
		return "nothing"
	}
	if s, ok := n.held.Sources[w.Address]; ok {
		return fmt.Sprintf("source %s %s", s.Service, node(s.Peer))
	}
	for _, id := range step.Keys(n.held.Routes) {
		r := n.held.Routes[id]
		is := strings.EqualFold(string(id), string(w.Service))
		for _, a := range append([]netip.Addr{r.Addresses.RoundRobin, r.Addresses.Closest}, values(r.Addresses.Instances)...) {
			is = is || a.IsValid() && a == w.Address
		}
		if !is {
			continue
		}
		peers := map[api.PeerKey]string{}
		for _, p := range r.Peers {
			peers[p.Key] = node(p)
		}
		var backends []string
		for _, be := range r.Backends {
			text := fmt.Sprintf("%s@%s=%s/%s", be.Instance, be.Epoch, be.Address, peers[be.Peer])
			if be.State != api.BackendUp {
				text += " " + string(be.State)
			}
			backends = append(backends, text)
		}
		slices.Sort(backends)
		return fmt.Sprintf("route %s %s %v", id, r.Addresses.RoundRobin, backends)
	}
	return "nothing"
}

func values[K comparable, V any](m map[K]V) (out []V) {
	for _, v := range m {
		out = append(out, v)
	}
	return out
}

// agree compares the state of every node with the truth, and checks that no address is used twice.
func (w *world) agree(what string) {
	w.t.Helper()
	tr := w.truth()
	for _, id := range step.Keys(w.nodes) {
		n := w.nodes[id]
		if n.off {
			continue
		}
		var wants []wire.Subscription
		for want := range n.wants {
			wants = append(wants, want)
		}
		slices.SortFunc(wants, wire.Subscription.Compare)
		for _, want := range wants {
			if got, should := n.said(want), tr.answer(n, want); got != should {
				w.t.Fatalf("%s: %s has subscribed to %+v:\n  has  %s\n  want %s", what, id, want, got, should)
			}
		}
		if extra := len(n.held.Routes) + len(n.held.Sources) + len(n.held.Peers) + len(n.held.Refused); extra > len(n.wants) {
			w.t.Fatalf("%s: %s has %d records too many for %d subscriptions", what, id, extra, len(n.wants))
		}
	}
	semantic := map[netip.Addr]api.ServiceID{}
	for _, s := range step.Keys(tr.services) {
		a := tr.services[s].Addresses
		all := append(values(a.Instances), a.RoundRobin)
		if a.Closest.IsValid() {
			all = append(all, a.Closest)
		}
		for _, addr := range all {
			if other, twice := semantic[addr]; twice || !wire.DefaultNetRanges().Services.Contains(addr) {
				w.t.Fatalf("%s: %s has the address %s, and so has %q", what, s, addr, other)
			}
			semantic[addr] = s
		}
	}
	subnets := map[netip.Prefix]api.NodeID{}
	shares := map[netip.Prefix]api.ClusterID{}
	for _, c := range w.root.core.Clusters() {
		for _, p := range c.Shares {
			if other, twice := shares[p]; twice {
				w.t.Fatalf("%s: the share %s belongs to %s and to %s", what, p, c.ID, other)
			}
			shares[p] = c.ID
		}
		for _, n := range w.clusters[c.ID].core.Nodes() {
			if !n.Subnet.IsValid() {
				continue
			}
			if other, twice := subnets[n.Subnet]; twice || shares[netip.PrefixFrom(n.Subnet.Addr(), 20).Masked()] != c.ID {
				w.t.Fatalf("%s: %s of %s has the subnet %s, and so has %q", what, n.ID, c.ID, n.Subnet, other)
			}
			subnets[n.Subnet] = n.ID
		}
	}
}
