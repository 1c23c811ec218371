package overlay

import (
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/balance"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
	"github.com/treeline-edge/treeline/netmanager/overlay/table"
)

// Plane returns the full desired state of the plane. Its cost is linear in the result.
func (v View) Plane() plane.State {
	st := plane.State{Node: v.planeNode()}
	for _, a := range v.endpoints.Addresses() {
		e, _ := v.planeEndpoint(a)
		st.Endpoints = append(st.Endpoints, e)
	}
	pairs := table.Set[plane.Pair]{}
	for _, id := range v.services.IDs() {
		st.Services = append(st.Services, v.planeServices(id)...)
		v.services.Pairs(id, pairs)
	}
	slices.SortFunc(st.Services, func(a, b plane.Service) int { return a.Address.Compare(b.Address) })
	for _, a := range v.services.Owned() {
		if s, ok := v.planeSource(a); ok {
			st.Sources = append(st.Sources, s)
		}
	}
	st.Allowed = table.SortPairs(pairs)
	for _, k := range v.peers.Keys() {
		if p, ok := v.planePeer(k); ok {
			st.Peers = append(st.Peers, p)
		}
	}
	return st
}

func (v View) planeNode() plane.Node {
	n := v.cfg.Node
	if v.lease != nil {
		n.Ranges, n.Subnet = v.lease.Ranges, v.lease.Subnet
	}
	return n
}

func (v View) planeEndpoint(addr netip.Addr) (plane.Endpoint, bool) {
	a, ok := v.endpoints.At(addr)
	if !ok {
		return plane.Endpoint{}, false
	}
	return plane.Endpoint{
		Address: addr, Ident: v.services.Ident(a.Service()), Device: plane.Device(v.cfg.Prefix, addr), Ports: slices.Clone(a.Attach.Ports),
	}, true
}

func (v View) planeSource(a netip.Addr) (plane.Source, bool) {
	id, _ := v.services.Owner(a)
	ident := v.services.Ident(id)
	return plane.Source{Address: a, Ident: ident}, ident != 0 && !v.endpoints.Has(a)
}

// planeServices returns the desired plane entries for a service's semantic addresses. Without a route, it
// returns only addresses with a subscription. Packets to the others are misses and cause a subscription.
func (v View) planeServices(id api.ServiceID) []plane.Service {
	route := v.services.Route(id)
	if route == nil && v.endpoints.Count(id) == 0 {
		return nil
	}
	backends, asleep := v.backends(id), route != nil && route.Asleep
	if asleep { // rather than to an instance that stops, new flows go to one that wakes
		backends = slices.DeleteFunc(backends, func(b balance.Backend) bool { return b.Draining || b.Gone })
	}
	all := v.balance.Services(id, v.services.Ident(id), v.services.Advertised(id), backends, func(a netip.Addr) bool {
		o, _ := v.services.Semantic(a)
		return o == id && (route != nil || v.subs.Subscribed(a))
	})
	if asleep { // packets without a backend are misses and cause a demand
		all = slices.DeleteFunc(all, func(s plane.Service) bool { return len(s.Backends) == 0 })
	}
	return all
}

// asleep reports whether packets to a semantic address wait until an instance of its service is awake.
func (v View) asleep(a netip.Addr) (id api.ServiceID, asleep bool) {
	id, ok := v.services.Semantic(a)
	route := v.services.Route(id)
	return id, ok && route != nil && route.Asleep && !slices.ContainsFunc(v.planeServices(id), func(s plane.Service) bool { return s.Address == a })
}

func (v View) planePeer(k api.PeerKey) (plane.Peer, bool) {
	q, ok := v.peers.Get(k)
	if !ok || k == v.self.Key {
		return plane.Peer{}, false
	}
	st := v.kernel.Status(k)
	p := plane.Peer{Key: k, Path: api.PathDirect, MTU: q.Path.MTU, Subnets: v.peers.Subnets(k), Accepts: st.Accepts}
	if p.Accepts != (plane.Paths{}) {
		p.Via = st.Via
	}
	if st.Path != "" {
		p.Path, p.Via, p.MTU = st.Path, st.Via, 0
	}
	return p, true
}

// flush emits the changes of the plane's desired state, and then the late orders.
func (c *Core) flush() {
	t, d := c.table, &c.table.Touched
	if d.All {
		d.Endpoints.Add(c.endpoints.Addresses()...)
		d.Services.Add(c.services.IDs()...)
		d.Access.Add(c.services.IDs()...)
		d.Sources.Add(append(c.services.Owned(), c.table.Sources()...)...)
		d.Peers.Add(c.peers.Keys()...)
		t.SetNode(c.View().planeNode())
	}
	for a := range d.Endpoints {
		d.Sources.Add(a) // only a remote address can be a source
	}
	of := map[api.ServiceID][]plane.Service{}
	for id := range d.Services {
		if c.services.Remove(id) {
			c.balance.Remove(id)
			d.Access.Add(id)
		}
		of[id] = c.View().planeServices(id)
		for _, s := range of[id] {
			if c.demands.Len() > 0 && c.demands.Drop(s.Address) {
				c.emitLate(ToQueue, Release{s.Address})
			}
		}
	}
	t.SetServices(of)
	var permissions []table.Permissions
	for _, id := range sorted.Ordered(d.Access) {
		p := table.Permissions{Service: id, Ident: c.services.Ident(id), Pairs: table.Set[plane.Pair]{}}
		if p.Ident != 0 {
			c.services.Pairs(id, p.Pairs)
		}
		permissions = append(permissions, p)
	}
	t.SetPairs(permissions)
	if len(d.Endpoints) > 0 || d.Silent {
		c.emit(ToTunnel, TunnelAddresses{c.endpoints.Addresses()})
	}
	for _, a := range sorted.Addrs(d.Endpoints) {
		e, ok := c.View().planeEndpoint(a)
		t.SetEndpoint(a, e, ok)
	}
	for _, a := range sorted.Addrs(d.Sources) {
		s, ok := c.View().planeSource(a)
		t.SetSource(a, s, ok)
	}
	for _, k := range sorted.Peers(d.Peers) {
		p, ok := c.View().planePeer(k)
		if t.SetPeer(k, p, ok) {
			c.emit(ToTunnel, TunnelDrop{k})
		}
		if ok {
			if p, changed := c.peers.Tunnel(k, false); changed {
				c.emit(ToTunnel, TunnelPeer{p})
			}
		}
	}
	if ch, ok := t.Take(); ok {
		c.emit(ToPlane, ch)
	}
	c.send = append(c.send, c.late...)
	c.late = nil
}
