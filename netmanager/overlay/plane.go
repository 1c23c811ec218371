package overlay

import (
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
	"github.com/treeline-edge/treeline/netmanager/overlay/sorted"
	"github.com/treeline-edge/treeline/netmanager/overlay/table"
)

// Plane returns all that the plane should hold. Its cost grows with that.
func (v *view) Plane() plane.State {
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

// flush emits the changes of what the plane should hold, and then the late orders.
func (c *Core) flush() {
	t, d := c.table, &c.table.Touched
	if d.All {
		for _, a := range c.endpoints.Addresses() {
			d.Endpoints[a] = struct{}{}
		}
		for _, id := range c.services.IDs() {
			d.Services[id], d.Access[id] = struct{}{}, struct{}{}
		}
		for _, a := range append(c.services.Owned(), c.table.Sources()...) {
			d.Sources[a] = struct{}{}
		}
		for _, k := range c.peers.Keys() {
			d.Peers[k] = struct{}{}
		}
		t.SetNode(c.planeNode())
	}
	for a := range d.Endpoints {
		d.Sources[a] = struct{}{} // an address is here or elsewhere
	}
	of := map[api.ServiceID][]plane.Service{}
	for id := range d.Services {
		if c.services.Forget(id) {
			c.balance.Remove(id)
			d.Access[id] = struct{}{}
		}
		of[id] = c.planeServices(id)
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
		c.emit(ToTunnel, TunnelHere{c.endpoints.Addresses()})
	}
	for _, a := range sorted.Addrs(d.Endpoints) {
		e, ok := c.planeEndpoint(a)
		t.SetEndpoint(a, e, ok)
	}
	for _, a := range sorted.Addrs(d.Sources) {
		s, ok := c.planeSource(a)
		t.SetSource(a, s, ok)
	}
	for _, k := range sorted.Peers(d.Peers) {
		p, ok := c.planePeer(k)
		if t.SetPeer(k, p, ok) {
			c.emit(ToTunnel, TunnelDrop{k})
		}
		if ok {
			if p, news := c.peers.Tunnel(k, false); news {
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
