package overlay

import (
	"bytes"
	"cmp"
	"encoding/json"
	"net/netip"
	"reflect"
	"slices"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// told is what the plane has been told.
type told struct {
	node      plane.Node
	endpoints map[netip.Addr]plane.Endpoint
	services  map[netip.Addr]plane.Service
	vips      map[api.ServiceID][]netip.Addr // of services
	sources   map[netip.Addr]plane.Source
	pairs     map[plane.Ident]map[plane.Pair]struct{} // by either end
	idents    map[api.ServiceID]plane.Ident           // that pairs were told of
	peers     map[api.PeerKey]plane.Peer
}

func newTold() told {
	return told{
		endpoints: map[netip.Addr]plane.Endpoint{}, services: map[netip.Addr]plane.Service{}, vips: map[api.ServiceID][]netip.Addr{},
		sources: map[netip.Addr]plane.Source{}, pairs: map[plane.Ident]map[plane.Pair]struct{}{}, idents: map[api.ServiceID]plane.Ident{},
		peers: map[api.PeerKey]plane.Peer{},
	}
}

// dirty is what a step has touched: of that alone it is worked out what the plane
// should have, and what differs from what it was told is its change.
type dirty struct {
	all       bool
	quiet     bool // the plane is synced by other means
	endpoints map[netip.Addr]struct{}
	services  map[api.ServiceID]struct{}
	sources   map[netip.Addr]struct{}
	access    map[api.ServiceID]struct{}
	peers     map[api.PeerKey]struct{}
	end       map[netip.Addr]struct{}
	retry     map[netip.Addr]struct{}
}

func newDirty() dirty {
	return dirty{
		endpoints: map[netip.Addr]struct{}{}, services: map[api.ServiceID]struct{}{},
		sources: map[netip.Addr]struct{}{}, access: map[api.ServiceID]struct{}{}, peers: map[api.PeerKey]struct{}{}, end: map[netip.Addr]struct{}{}, retry: map[netip.Addr]struct{}{},
	}
}

func (d *dirty) clear() {
	d.all, d.quiet = false, false
	clear(d.endpoints)
	clear(d.services)
	clear(d.sources)
	clear(d.access)
	clear(d.peers)
	clear(d.end)
	clear(d.retry)
}

// touch has what the plane should have of a service worked out anew.
func (c *Core) touch(id api.ServiceID) { c.dirty.services[id] = struct{}{} }

// tellAgain has the plane told of an address that it should know.
func (c *Core) tellAgain(a netip.Addr) {
	if _, ok := c.told.services[a]; ok {
		c.told.services[a] = plane.Service{}
		c.touch(c.vips[a])
	}
	if _, ok := c.told.sources[a]; ok {
		c.told.sources[a] = plane.Source{}
		c.dirty.sources[a] = struct{}{}
	}
	if k, ok := c.peerAt(a); ok {
		c.told.peers[k] = plane.Peer{}
		c.dirty.peers[k] = struct{}{}
	}
}

// Plane is all that the plane should hold. It costs what there is.
func (c *Core) Plane() plane.State {
	st := plane.State{Node: c.planeNode()}
	for _, a := range sortedKeys(c.at) {
		e, _ := c.planeEndpoint(a)
		st.Endpoints = append(st.Endpoints, e)
	}
	pairs := map[plane.Pair]struct{}{}
	for _, id := range sortedKeys(c.services) {
		s := c.services[id]
		st.Services = append(st.Services, c.planeServices(s)...)
		c.pairs(s, pairs)
	}
	slices.SortFunc(st.Services, func(a, b plane.Service) int { return a.Address.Compare(b.Address) })
	for _, a := range sortedKeys(c.owners) {
		if s, ok := c.planeSource(a); ok {
			st.Sources = append(st.Sources, s)
		}
	}
	st.Allowed = sortedPairs(pairs)
	for _, k := range sortedKeys(c.peers) {
		if p, ok := c.planePeer(k); ok {
			st.Peers = append(st.Peers, p)
		}
	}
	return st
}

// flush says what changed of that.
func (c *Core) flush() {
	d := &c.dirty
	if d.all {
		c.touchAll()
	}
	var ch plane.Change
	if n := c.planeNode(); d.all && !reflect.DeepEqual(n, c.told.node) {
		c.told.node = n
		ch.Node = &n
	}
	for a := range d.endpoints {
		d.sources[a] = struct{}{} // an address is here or elsewhere
	}
	c.flushServices(&ch)
	c.flushPairs(&ch)
	if len(d.endpoints) > 0 || d.quiet {
		c.emit(ToTunnel, TunnelHere{sortedKeys(c.at)})
	}
	for _, a := range sortedKeys(d.endpoints) {
		e, ok := c.planeEndpoint(a)
		was, had := c.told.endpoints[a]
		switch {
		case ok && (!had || !reflect.DeepEqual(e, was)):
			c.told.endpoints[a] = e
			ch.SetEndpoints = append(ch.SetEndpoints, e)
		case !ok && had:
			delete(c.told.endpoints, a)
			ch.DropEndpoints = append(ch.DropEndpoints, a)
		}
	}
	for _, a := range sortedKeys(d.sources) {
		s, ok := c.planeSource(a)
		was, had := c.told.sources[a]
		switch {
		case ok && (!had || s != was):
			c.told.sources[a] = s
			ch.SetSources = append(ch.SetSources, s)
		case !ok && had:
			delete(c.told.sources, a)
			ch.DropSources = append(ch.DropSources, a)
		}
	}
	c.flushPeers(&ch)
	ch.End, ch.Retry = sortedKeys(d.end), sortedKeys(d.retry)
	if !d.quiet && !reflect.DeepEqual(ch, plane.Change{}) {
		c.emit(ToPlane, ch)
	}
	d.clear()
	c.send = append(c.send, c.late...)
	c.late = nil
}

func (c *Core) touchAll() {
	d := &c.dirty
	for a := range c.at {
		d.endpoints[a] = struct{}{}
	}
	for id := range c.services {
		c.touch(id)
		d.access[id] = struct{}{}
	}
	for a := range c.owners {
		d.sources[a] = struct{}{}
	}
	for a := range c.told.sources {
		d.sources[a] = struct{}{}
	}
	for k := range c.peers {
		d.peers[k] = struct{}{}
	}
}

func (c *Core) flushServices(ch *plane.Change) {
	should := map[netip.Addr]plane.Service{}
	had := map[netip.Addr]struct{}{}
	for _, id := range sortedKeys(c.dirty.services) {
		for _, v := range c.told.vips[id] {
			had[v] = struct{}{}
		}
		delete(c.told.vips, id)
		s := c.services[id]
		if s == nil {
			continue
		}
		if c.forget(s); c.services[id] == nil {
			c.dirty.access[id] = struct{}{}
			continue
		}
		for _, p := range c.planeServices(s) {
			should[p.Address] = p
			c.told.vips[id] = append(c.told.vips[id], p.Address)
		}
	}
	for _, v := range sortedKeys(had) {
		if _, ok := should[v]; ok {
			continue
		}
		if _, ok := c.told.services[v]; ok {
			delete(c.told.services, v)
			ch.DropServices = append(ch.DropServices, v)
		}
	}
	for _, v := range sortedKeys(should) {
		p := should[v]
		if was, ok := c.told.services[v]; ok && was.Ident == p.Ident && slices.Equal(was.Backends, p.Backends) {
			continue
		}
		c.told.services[v] = p
		ch.SetServices = append(ch.SetServices, p)
	}
}

func (c *Core) planeSource(a netip.Addr) (plane.Source, bool) {
	id, ok := c.owners[a]
	if s := c.services[id]; ok && s != nil && c.at[a] == nil {
		return plane.Source{Address: a, Ident: s.ident}, true
	}
	return plane.Source{}, false
}

// pairs adds what may pass between the service and others. One end is always on
// this node: what passes between others is not this node's to allow.
func (c *Core) pairs(s *service, into map[plane.Pair]struct{}) {
	with := func(o *service) {
		if c.mayCall(s.id, o.id) {
			into[plane.Pair{From: s.ident, To: o.ident}] = struct{}{}
		}
		if c.mayCall(o.id, s.id) {
			into[plane.Pair{From: o.ident, To: s.ident}] = struct{}{}
		}
	}
	if len(s.local) > 0 {
		for _, o := range c.services {
			with(o)
		}
		return
	}
	for _, a := range c.attached {
		with(c.services[a.service()])
	}
}

func (c *Core) flushPairs(ch *plane.Change) {
	allow, deny := map[plane.Pair]struct{}{}, map[plane.Pair]struct{}{}
	for _, id := range sortedKeys(c.dirty.access) {
		should := map[plane.Pair]struct{}{}
		ident := c.told.idents[id]
		if s := c.services[id]; s != nil {
			c.pairs(s, should)
			ident = s.ident
			c.told.idents[id] = ident
		} else {
			delete(c.told.idents, id)
		}
		for p := range c.told.pairs[ident] {
			if _, ok := should[p]; !ok {
				deny[p] = struct{}{}
				removeFrom(c.told.pairs, p.From, p)
				removeFrom(c.told.pairs, p.To, p)
			}
		}
		for p := range should {
			if _, ok := c.told.pairs[ident][p]; !ok {
				allow[p] = struct{}{}
				addTo(c.told.pairs, p.From, p)
				addTo(c.told.pairs, p.To, p)
			}
		}
	}
	for p := range allow { // seen from one end and the other
		delete(deny, p)
	}
	ch.Allow, ch.Deny = sortedPairs(allow), sortedPairs(deny)
}

func sortedPairs(set map[plane.Pair]struct{}) []plane.Pair {
	var out []plane.Pair
	for p := range set {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b plane.Pair) int { return cmp.Or(cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To)) })
	return out
}

func (c *Core) flushPeers(ch *plane.Change) {
	for _, k := range sortedKeys(c.dirty.peers) {
		p, ok := c.planePeer(k)
		was, had := c.told.peers[k]
		switch {
		case ok && (!had || !reflect.DeepEqual(p, was)):
			c.told.peers[k] = p
			ch.SetPeers = append(ch.SetPeers, p)
		case !ok && had:
			delete(c.told.peers, k)
			ch.DropPeers = append(ch.DropPeers, k)
			c.emit(ToTunnel, TunnelDrop{k})
		}
		if q := c.peers[k]; ok && (q.untold || !slices.Equal(p.Subnets, q.granted)) {
			c.tellTunnel(q)
		}
	}
}

// sortedKeys are the keys of m in an order that is the same in every run.
func sortedKeys[K comparable, V any](m map[K]V) []K {
	if len(m) == 0 {
		return nil
	}
	out := make([]K, 0, len(m))
	for k := range m {
		out = append(out, k)
	}
	slices.SortFunc(out, func(a, b K) int {
		switch a := any(a).(type) {
		case netip.Addr:
			return a.Compare(any(b).(netip.Addr))
		case api.PeerKey:
			o := any(b).(api.PeerKey)
			return bytes.Compare(a[:], o[:])
		case api.ServiceID:
			return cmp.Compare(a, any(b).(api.ServiceID))
		case farEnd:
			o := any(b).(farEnd)
			return cmp.Or(cmp.Compare(a.service, o.service), cmp.Compare(a.cluster, o.cluster), cmp.Compare(a.node, o.node))
		case int:
			return cmp.Compare(a, any(b).(int))
		}
		panic("keys without an order")
	})
	return out
}

func equalJSON(a, b any) bool {
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && bytes.Equal(x, y)
}
