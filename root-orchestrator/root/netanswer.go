package root

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/internal/interest"
	"github.com/treeline-edge/treeline/internal/step"
)

func (c *Core) resolveAll(refs []ref) {
	for _, r := range refs {
		c.resolve(r)
	}
}

// resolveAbout answers again the wants with a subject.
func (c *Core) resolveAbout(w api.Want) {
	if s := c.services[w.Service]; s != nil {
		c.resolveService(s.id)
		return
	}
	c.resolveAll(c.net.book.Of(w))
}

// resolveService answers again all that is asked about a service, by name or by
// any of its addresses.
func (c *Core) resolveService(id api.ServiceID) {
	c.resolveAll(c.net.book.Of(api.Want{Service: id}))
	if s := c.services[id]; s != nil && s.app != nil {
		for _, a := range addressesOf(s.app.Addresses[id]) {
			c.resolveAll(c.net.book.Of(api.Want{Address: a}))
		}
	}
}

// resolve answers a want anew. What other clusters have to say first is asked of
// them; until they have, the answer is what it was.
func (c *Core) resolve(r ref) {
	k, about := c.answer(r)
	c.isAbout(r, about)
	c.askAddress(r.Want)
	if k != (interest.Key{}) {
		c.net.book.Answer(r.Sub, r.Want, k)
	}
}

// answer is what a want leads to, nothing where that is not known yet, and the
// service that it is about, if any.
func (c *Core) answer(r ref) (k interest.Key, about api.ServiceID) {
	w, a := r.Want, r.Want.Address
	switch {
	case w.For != "" && !c.hosts(r.Sub, w.For):
		return interest.RefusalOf(w, true), ""
	case a.IsValid() == (w.Service != ""), w.For == "" && !c.net.ranges.Instances.Contains(a):
		return interest.RefusalOf(w, false), ""
	case c.net.ranges.Instances.Contains(a):
		return c.atAddress(r), ""
	}
	id := c.net.addresses.Owner(a)
	if w.Service != "" {
		id, _ = c.net.names.Find(w.Service)
	}
	s := c.services[id]
	if s == nil || s.app == nil {
		return interest.RefusalOf(w, false), ""
	}
	if !api.MayCall(w.For, c.access(w.For), id, s.spec.Access()) {
		return interest.RefusalOf(w, w.For.Tenant() == id.Tenant()), ""
	}
	if !c.heardOf(s, r.Sub) {
		return interest.Key{}, id
	}
	return interest.RouteOf(id), id
}

func (c *Core) access(id api.ServiceID) api.Access {
	if s := c.services[id]; s != nil && s.spec != nil {
		return s.spec.Access()
	}
	return api.Access{Closed: true}
}

// heardOf reports whether every cluster that has instances of the service, but
// one, has said what it has, or cannot.
func (c *Core) heardOf(s *service, but api.ClusterID) bool {
	for _, host := range step.Keys(s.peers) {
		if id := api.ClusterID(host); id != but && !c.heardFrom(c.clusters[id], api.Want{Service: s.id}) {
			return false
		}
	}
	return true
}

// heardFrom reports whether a cluster has answered what it was asked, or cannot.
func (c *Core) heardFrom(cl *cluster, w api.Want) bool {
	if cl == nil || cl.silent || cl.heard && !cl.net.speaks {
		return true
	}
	x := &cl.net.exports
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

// holder is the cluster that an address of the instance network belongs to.
func (c *Core) holder(a netip.Addr) *cluster {
	p, err := a.Prefix(c.net.ranges.Share)
	if err != nil {
		return nil
	}
	return c.clusters[c.net.holders[p]]
}

// atAddress answers who is at an address: an instance, or, on behalf of nobody, a
// node.
func (c *Core) atAddress(r ref) interest.Key {
	w := r.Want
	cl := c.holder(w.Address)
	if cl == nil || cl.Info.ID == r.Sub {
		return interest.RefusalOf(w, false)
	}
	if w.For == "" {
		if p := cl.net.exports.PeerAt(w.Address); p != nil {
			return interest.PeerOf(p.Key)
		}
	} else if s, ok := cl.net.exports.Sources[w.Address]; ok && c.hosts(cl.Info.ID, s.Service) {
		from, to := c.access(s.Service), c.access(w.For)
		if api.MayCall(s.Service, from, w.For, to) || api.MayCall(w.For, to, s.Service, from) {
			return interest.SourceOf(w.Address)
		}
		return interest.RefusalOf(w, w.For.Tenant() == s.Service.Tenant())
	}
	if c.heardFrom(cl, api.Want{Address: w.Address}) {
		return interest.RefusalOf(w, false)
	}
	return interest.Key{}
}

// isAbout notes which service a want is about, and has its hosts asked for it.
func (c *Core) isAbout(r ref, id api.ServiceID) {
	old := c.net.about[r]
	if old == id {
		return
	}
	if s := c.services[old]; s != nil && s.net.wanted != nil {
		if s.net.wanted[r.Sub]--; s.net.wanted[r.Sub] <= 0 {
			delete(s.net.wanted, r.Sub)
		}
	}
	if old != "" {
		c.askHosts(old)
	}
	if delete(c.net.about, r); id == "" {
		return
	}
	c.net.about[r] = id
	s := c.services[id]
	if s.net.wanted == nil {
		s.net.wanted, s.net.asked = map[api.ClusterID]int{}, map[api.ClusterID]bool{}
	}
	s.net.wanted[r.Sub]++
	c.askHosts(id)
}

// askHosts asks those clusters for a service that have it, where another wants it.
func (c *Core) askHosts(id api.ServiceID) {
	s := c.services[id]
	if s == nil {
		for _, cl := range step.Keys(c.clusters) {
			c.ask(c.clusters[cl], api.Want{Service: id}, false)
		}
		return
	}
	if s.net.asked == nil {
		return
	}
	want := map[api.ClusterID]bool{}
	note := func(cl api.ClusterID) {
		if _, self := s.net.wanted[cl]; len(s.net.wanted) > 1 || len(s.net.wanted) == 1 && !self {
			want[cl] = true
		}
	}
	for host := range s.peers {
		note(api.ClusterID(host))
	}
	for cl := range s.net.asked { // what is on its way off it serves until it is gone
		if !want[cl] && c.hosts(cl, id) {
			note(cl)
		}
	}
	for _, cl := range step.Keys(c.clusters) {
		if want[cl] != s.net.asked[cl] {
			c.ask(c.clusters[cl], api.Want{Service: id}, want[cl])
			if s.net.asked[cl] = want[cl]; !want[cl] {
				delete(s.net.asked, cl)
			}
		}
	}
}

// askAddress asks the cluster that has an address who is there, while another
// wants to know.
func (c *Core) askAddress(w api.Want) {
	if !c.net.ranges.Instances.Contains(w.Address) {
		return
	}
	if cl := c.holder(w.Address); cl != nil {
		w = api.Want{Address: w.Address}
		wanted := slices.ContainsFunc(c.net.book.Of(w), func(r ref) bool { return r.Sub != cl.Info.ID })
		c.ask(cl, w, wanted)
	}
}

// ask asks a cluster for something from now on, or no more.
func (c *Core) ask(cl *cluster, w api.Want, on bool) {
	k := &cl.net
	if k.asked[w] == on {
		return
	}
	if k.asked == nil {
		k.asked, k.news = map[api.Want]bool{}, map[api.Want]bool{}
	}
	k.askedOf = k.askedOf.Toggle(w.Digest())
	if k.news[w] {
		delete(k.news, w) // it was not told of the opposite yet
	} else {
		k.news[w] = true
	}
	if k.asked[w] = on; on {
		k.all.asked.Add(w)
	} else {
		delete(k.asked, w)
		r := api.Records{Answered: []api.Want{w}}
		if w.Service != "" {
			r.Gone = []api.ServiceID{w.Service}
		} else {
			r.GoneSources = []netip.Addr{w.Address}
			if p := k.exports.PeerAt(w.Address); p != nil {
				r.GonePeers = []api.PeerKey{p.Key}
			}
		}
		for _, key := range k.exports.Take(r) {
			c.exported(cl, key)
		}
	}
	c.net.talk[cl.Info.ID] = true
}

// exported takes that a cluster says something new of its own.
func (c *Core) exported(cl *cluster, k interest.Key) {
	id := cl.Info.ID
	switch k.Kind {
	case interest.Route:
		c.net.book.Changed(k, id)
		c.resolveService(k.Service)
	case interest.Source:
		c.net.book.Changed(k, id)
		c.resolveAll(c.net.book.Of(api.Want{Address: k.Address}))
	case interest.Peer:
		if p, ok := cl.net.exports.Peers[k.Peer]; ok {
			if c.net.peers[k.Peer] == "" {
				c.net.peers[k.Peer] = id
			}
			for _, sub := range p.Subnets {
				c.resolveAll(c.net.book.Of(api.Want{Address: sub.Addr()}))
			}
		} else if c.net.peers[k.Peer] == id {
			delete(c.net.peers, k.Peer)
		}
		c.net.book.Changed(k, id)
	case interest.Refused:
		c.resolveAbout(k.Refusal.Want)
	}
}

// namesChanged takes the services of an application as they are now.
func (c *Core) namesChanged(a *app, before []api.ServiceID) {
	for _, id := range before {
		c.net.names.Remove(id)
	}
	if c.apps[a.ID] == a {
		for _, id := range step.Keys(a.Replicas) {
			c.net.names.Add(id)
			before = append(before, id)
		}
	}
	slices.Sort(before)
	for _, id := range slices.Compact(before) {
		c.serviceChanged(id)
	}
}

// serviceChanged answers again what depends on a service's SLA, or on that it is
// there at all.
func (c *Core) serviceChanged(id api.ServiceID) {
	c.net.book.Changed(interest.RouteOf(id))
	c.resolveService(id)
	c.resolveAll(c.net.book.CalledBy(id))
	s := c.services[id]
	if s == nil {
		return
	}
	for _, cl := range step.Keys(s.net.asked) {
		if c.clusters[cl] == nil {
			continue
		}
		x := &c.clusters[cl].net.exports
		for _, a := range x.SourcesOf(id) {
			c.net.book.Changed(interest.SourceOf(a), cl)
			c.resolveAll(c.net.book.Of(api.Want{Address: a}))
		}
	}
}

// elsewhere is what one cluster is told: what the others have.
type elsewhere struct {
	*Core
	to *cluster
}

func (v elsewhere) revOf(k interest.Key) uint64 { return v.net.book.Rev(k, v.net.next) }

// Route gathers what the clusters that have a service said of it.
func (v elsewhere) Route(id api.ServiceID) (api.Route, bool) {
	s := v.services[id]
	if s == nil || s.app == nil {
		return api.Route{}, false
	}
	r := api.Route{
		Service: id, Rev: v.revOf(interest.RouteOf(id)), Addresses: s.app.Addresses[id], Access: s.spec.Access(), Ports: s.spec.Ports(),
	}
	for _, cid := range step.Keys(s.net.asked) {
		cl := v.clusters[cid]
		if cl == nil || cl == v.to || !v.hosts(cid, id) {
			continue
		}
		part, ok := cl.net.exports.Routes[id]
		if !ok {
			continue
		}
		known := map[api.PeerKey]api.Peer{}
		for _, p := range part.Peers {
			if v.fit(cl, &p) {
				known[p.Key] = p
				r.Peers = append(r.Peers, p)
			}
		}
		for _, be := range part.Backends {
			if p, ok := known[be.Peer]; !ok || be.Instance.Service() != id || !behind(&p, be.Address) {
				continue // the cluster may not announce it
			}
			if cl.silent {
				be.State = api.BackendDraining
			}
			r.Backends = append(r.Backends, be)
		}
	}
	return r, true
}

// Source is who is at an address of another cluster's.
func (v elsewhere) Source(a netip.Addr) (api.Source, bool) {
	cl := v.holder(a)
	if cl == nil {
		return api.Source{}, false
	}
	s, ok := cl.net.exports.Sources[a]
	if !ok || !v.hosts(cl.Info.ID, s.Service) || !v.fit(cl, &s.Peer) || !behind(&s.Peer, a) {
		return api.Source{}, false
	}
	s.Rev, s.Access = v.revOf(interest.SourceOf(a)), v.access(s.Service)
	return s, true
}

// Peer is a node of another cluster's.
func (v elsewhere) Peer(k api.PeerKey) (api.Peer, bool) {
	cl := v.clusters[v.net.peers[k]]
	if cl == nil {
		return api.Peer{}, false
	}
	p, ok := cl.net.exports.Peers[k]
	return p, ok && v.fit(cl, &p)
}

// fit removes the fields of p that other clusters must not see and reports whether
// cl may announce p: each of its subnets must be one node's lease within a share
// that cl holds. A prefix whose base address alone is in the share, such as
// 10.16.16.0/0, would let the peer send packets from any tenant's addresses.
func (c *Core) fit(cl *cluster, p *api.Peer) bool {
	p.Node, p.Cluster = "", cl.Info.ID
	return len(p.Subnets) > 0 && !slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool {
		return c.net.ranges.CheckSubnet(s) != nil || !cl.has(s.Addr())
	})
}

// behind reports whether an address belongs to one of the peer's subnets.
func behind(p *api.Peer, a netip.Addr) bool {
	return slices.ContainsFunc(p.Subnets, func(s netip.Prefix) bool { return s.Contains(a) })
}

// has reports whether an address is in one of the cluster's shares. Shares are not
// shorter than subnets, so a share holds all of a subnet whose base it holds.
func (cl *cluster) has(a netip.Addr) bool {
	return slices.ContainsFunc(cl.Shares, func(p netip.Prefix) bool { return p.Contains(a) })
}
