package netbook

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
	"github.com/treeline-edge/treeline/internal/wire"
)

func (c *call) resolveAll(subs []sub) {
	for _, s := range subs {
		c.resolve(s)
	}
}

// resolveSubject resolves the subscriptions to a service or an address again. Subscriptions to a
// service may name it or any of its addresses.
func (c *call) resolveSubject(w wire.Subscription) {
	c.resolveAll(c.subs.About(w))
	if s, ok := c.Service(w.Service); ok && w.Service != "" {
		for _, a := range s.Addresses.All() {
			c.resolveAll(c.subs.About(wire.Subscription{Address: a}))
		}
	}
}

// resolve answers a subscription. If other clusters have to publish first, it subscribes to them,
// and the earlier answer stays until they have published.
func (c *call) resolve(s sub) {
	k, about := c.answer(s)
	c.setAbout(s, about)
	c.askAddress(s.Subscription)
	if k != (interest.Key{}) {
		c.subs.Answer(s.Subscriber, s.Subscription, k)
	}
}

// answer returns the record that answers a subscription, or the zero Key if it is not determined
// yet, and the service that the subscription resolves to, or "".
func (c *call) answer(s sub) (k interest.Key, about api.ServiceID) {
	w, a := s.Subscription, s.Subscription.Address
	switch {
	case w.For != "" && !c.Hosting(s.Subscriber, w.For):
		return interest.RefusalOf(w, true), ""
	case a.IsValid() == (w.Service != ""), w.For == "" && !c.ranges.Instances.Contains(a):
		return interest.RefusalOf(w, false), ""
	case c.ranges.Instances.Contains(a):
		return c.atAddress(s), ""
	}
	id := c.Owner(a)
	if w.Service != "" {
		id, _ = c.names.Find(w.Service)
	}
	to, ok := c.Service(id)
	switch {
	case !ok:
		return interest.RefusalOf(w, false), ""
	case !api.MayCall(w.For, c.access(w.For), id, to.Spec.Access()):
		return interest.RefusalOf(w, w.For.Tenant() == id.Tenant()), ""
	case !c.complete(id, s.Subscriber):
		return interest.Key{}, id
	}
	return interest.RouteOf(id), id
}

func (c *call) access(id api.ServiceID) api.Access {
	if s, ok := c.Service(id); ok {
		return s.Spec.Access()
	}
	return api.Access{Closed: true}
}

// complete reports whether each cluster that hosts a service, apart from except, has answered about
// it.
func (c *call) complete(id api.ServiceID, except api.ClusterID) bool {
	return !slices.ContainsFunc(c.Hosts(id), func(host api.ClusterID) bool {
		return host != except && !c.clusters[host].answered(wire.Subscription{Service: id})
	})
}

// answered reports whether a cluster has published or refused w, or cannot do either because it is
// silent or not on the network.
func (cl *cluster) answered(w wire.Subscription) bool {
	if cl == nil || cl.silent || cl.heard && !cl.networked {
		return true
	}
	x := &cl.published
	if _, refused := x.Refused[w]; refused {
		return true
	}
	if w.Service != "" {
		_, ok := x.Routes[w.Service]
		return ok
	}
	_, ok := x.Sources[w.Address]
	return ok || x.PeerAt(w.Address) != nil
}

// holder returns the cluster whose share contains an address of the instance network, or nil.
func (b *Machine) holder(a netip.Addr) *cluster {
	p, err := a.Prefix(b.ranges.Share)
	if err != nil {
		return nil
	}
	return b.clusters[b.holders[p]]
}

// atAddress answers a subscription to an address of the instance network with the source at the
// address or, if the subscription is for no service, with the node.
func (c *call) atAddress(s sub) interest.Key {
	w := s.Subscription
	cl := c.holder(w.Address)
	if cl == nil || cl.id == s.Subscriber {
		return interest.RefusalOf(w, false)
	}
	if w.For == "" {
		if p := cl.published.PeerAt(w.Address); p != nil {
			return interest.PeerOf(p.Key)
		}
	} else if from, ok := cl.published.Sources[w.Address]; ok && c.Hosting(cl.id, from.Service) {
		a, b := c.access(from.Service), c.access(w.For)
		if api.MayCall(from.Service, a, w.For, b) || api.MayCall(w.For, b, from.Service, a) {
			return interest.SourceOf(w.Address)
		}
		return interest.RefusalOf(w, w.For.Tenant() == from.Service.Tenant())
	}
	if cl.answered(wire.Subscription{Address: w.Address}) {
		return interest.RefusalOf(w, false)
	}
	return interest.Key{}
}

// setAbout sets the service that a subscription resolves to, and updates the hosts of this service
// and of the earlier one.
func (c *call) setAbout(s sub, id api.ServiceID) {
	old := c.about[s]
	if old == id {
		return
	}
	if was := c.services[old]; was != nil {
		if was.subscribers[s.Subscriber]--; was.subscribers[s.Subscriber] <= 0 {
			delete(was.subscribers, s.Subscriber)
		}
	}
	if old != "" {
		c.askHosts(old)
	}
	if delete(c.about, s); id == "" {
		return
	}
	c.about[s] = id
	c.service(id).subscribers[s.Subscriber]++
	c.askHosts(id)
}

// askHosts subscribes to a service at each of its hosts, if another cluster subscribes to the
// service, and unsubscribes at all other clusters.
func (c *call) askHosts(id api.ServiceID) {
	s := c.services[id]
	if s == nil {
		return
	}
	want := map[api.ClusterID]bool{}
	note := func(cl api.ClusterID) {
		if _, self := s.subscribers[cl]; len(s.subscribers) > 1 || len(s.subscribers) == 1 && !self {
			want[cl] = true
		}
	}
	for _, host := range c.Hosts(id) {
		note(host)
	}
	for cl := range s.asked { // a leaving instance serves until it has ended
		if !want[cl] && c.Hosting(cl, id) {
			note(cl)
		}
	}
	for _, cl := range step.Keys(c.clusters) {
		if want[cl] == s.asked[cl] {
			continue
		}
		c.ask(c.clusters[cl], wire.Subscription{Service: id}, want[cl])
		if s.asked[cl] = want[cl]; !want[cl] {
			delete(s.asked, cl)
		}
	}
	c.collect(id)
}

// askAddress subscribes to an address at the cluster that has it, if another cluster subscribes to
// the address, and otherwise unsubscribes.
func (c *call) askAddress(w wire.Subscription) {
	if !c.ranges.Instances.Contains(w.Address) {
		return
	}
	if cl := c.holder(w.Address); cl != nil {
		w = wire.Subscription{Address: w.Address}
		c.ask(cl, w, slices.ContainsFunc(c.subs.About(w), func(s sub) bool { return s.Subscriber != cl.id }))
	}
}

// ask subscribes to w at a cluster, or unsubscribes and removes the records.
func (c *call) ask(cl *cluster, w wire.Subscription, on bool) {
	if !cl.asked.Set(w, on) {
		return
	}
	if !on {
		r := wire.Records{RemovedRefusals: []wire.Subscription{w}}
		if w.Service != "" {
			r.RemovedRoutes = []api.ServiceID{w.Service}
		} else {
			r.RemovedSources = []netip.Addr{w.Address}
			if p := cl.published.PeerAt(w.Address); p != nil {
				r.RemovedPeers = []api.PeerKey{p.Key}
			}
		}
		for _, key := range cl.published.Take(r) {
			c.publishedChanged(cl, key)
		}
	}
	c.send[cl.id] = true
}

// publishedChanged resolves again the subscriptions that depend on a record that a cluster
// published, changed or removed.
func (c *call) publishedChanged(cl *cluster, k interest.Key) {
	switch k.Kind {
	case interest.Route:
		c.subs.Changed(k, cl.id)
		c.resolveSubject(wire.Subscription{Service: k.Service})
	case interest.Source:
		c.subs.Changed(k, cl.id)
		c.resolveAll(c.subs.About(wire.Subscription{Address: k.Address}))
	case interest.Peer:
		if p, ok := cl.published.Peers[k.Peer]; ok {
			if c.peers[k.Peer] == "" {
				c.peers[k.Peer] = cl.id
			}
			for _, sub := range p.Subnets {
				c.resolveAll(c.subs.About(wire.Subscription{Address: sub.Addr()}))
			}
		} else if c.peers[k.Peer] == cl.id {
			delete(c.peers, k.Peer)
		}
		c.subs.Changed(k, cl.id)
	case interest.Refused:
		c.resolveSubject(k.Subscription)
	}
}

// serviceChanged resolves again the subscriptions that depend on a service's existence or SLA.
func (c *call) serviceChanged(id api.ServiceID) {
	c.subs.Changed(interest.RouteOf(id))
	c.resolveSubject(wire.Subscription{Service: id})
	c.resolveAll(c.subs.For(id))
	s := c.services[id]
	if s == nil {
		return
	}
	for _, host := range step.Keys(s.asked) {
		cl := c.clusters[host]
		if cl == nil {
			continue
		}
		for _, a := range cl.published.SourcesOf(id) {
			c.subs.Changed(interest.SourceOf(a), host)
			c.resolveAll(c.subs.About(wire.Subscription{Address: a}))
		}
	}
}
