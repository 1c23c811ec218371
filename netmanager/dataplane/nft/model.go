package nft

import (
	"encoding/binary"
	"fmt"
	"iter"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// model is the content of the table: the objects, and the elements that represent them.
type model struct {
	*sets
	node      plane.Node
	endpoints map[netip.Addr]plane.Endpoint
	services  map[netip.Addr]service
	sources   map[netip.Addr]plane.Ident
	allowed   map[plane.Pair]bool
	peers     map[api.PeerKey]peer
	started   int // services that got turns so far; selects the first backend
}

type service struct {
	plane.Service
	turns []netip.Addr
}

type peer struct {
	plane.Peer
	// Devices by which the peer's packets arrive, and by which packets to it leave, on kernel
	// paths.
	in  []string
	out string
}

func newModel(s *sets) *model {
	return &model{
		sets: s, endpoints: map[netip.Addr]plane.Endpoint{}, services: map[netip.Addr]service{},
		sources: map[netip.Addr]plane.Ident{}, allowed: map[plane.Pair]bool{}, peers: map[api.PeerKey]peer{},
	}
}

// delta is the effect of a change on the table, and how to undo it.
type delta struct {
	*model
	whole  bool                    // of an empty model: it is not undone
	before map[*set]map[data]value // the former values of changed elements
	turns  map[netip.Addr]int      // the former numbers of turns of changed services, -1 for no service
	undo   []func()
}

// step applies c to the model. via returns the device that leads to a peer.
func (m *model) step(c plane.Change, via func(netip.Addr) (string, error)) (*delta, error) {
	d := &delta{model: m, before: map[*set]map[data]value{}, turns: map[netip.Addr]int{}}
	if err := d.apply(c, via); err != nil {
		d.back()
		return nil, err
	}
	return d, nil
}

// fill applies c to an empty model.
func (m *model) fill(c plane.Change, via func(netip.Addr) (string, error)) (*delta, error) {
	d := &delta{model: m, whole: true, turns: map[netip.Addr]int{}}
	return d, d.apply(c, via)
}

func (d *delta) apply(c plane.Change, via func(netip.Addr) (string, error)) error {
	if err := dataplane.Check(c); err != nil {
		return err
	}
	if c.Node != nil {
		old := d.node
		d.undo = append(d.undo, func() { d.node = old })
		d.node = *c.Node
	}
	for _, a := range c.DropEndpoints {
		put(d, d.endpoints, a, nil, d.endpoint)
	}
	for _, a := range c.DropServices {
		d.setService(a, nil)
	}
	for _, a := range c.DropSources {
		put(d, d.sources, a, nil, d.source)
	}
	for _, p := range c.Deny {
		put(d, d.allowed, p, nil, d.pair)
	}
	for _, k := range c.DropPeers {
		put(d, d.peers, k, nil, d.peer)
	}
	for _, e := range c.SetEndpoints {
		if e.Device == "" || len(e.Device) >= unix.IFNAMSIZ {
			return fmt.Errorf("endpoint %s has device %q, whose name is not 1 to %d bytes: %w", e.Address, e.Device, unix.IFNAMSIZ-1, api.ErrInvalid)
		}
		put(d, d.endpoints, e.Address, &e, d.endpoint)
	}
	for _, s := range c.SetServices {
		d.setService(s.Address, &s)
	}
	for _, s := range c.SetSources {
		put(d, d.sources, s.Address, &s.Ident, d.source)
	}
	for _, p := range c.Allow {
		yes := true
		put(d, d.allowed, p, &yes, d.pair)
	}
	for _, p := range c.SetPeers {
		next := peer{Peer: p}
		vxlan, route := plane.VXLANDevice(d.node.Prefix), ""
		if p.Accepts.Route || p.Path == api.PathRoute {
			var err error
			if route, err = via(p.Via); err != nil && p.Path == api.PathRoute {
				return fmt.Errorf("peer %s by %s: %w", p.Key, p.Via, err)
			}
		}
		switch p.Path {
		case api.PathVXLAN:
			next.out = vxlan
		case api.PathRoute:
			next.out = route
		}
		if p.Accepts.VXLAN {
			next.in = append(next.in, vxlan)
		}
		if p.Accepts.Route && route != "" { // otherwise no packets come from there
			next.in = append(next.in, route)
		}
		for _, s := range p.Subnets {
			if s.Bits() > d.node.Ranges.Subnet {
				return fmt.Errorf("subnet %s of peer %s is smaller than /%d: %w", s, p.Key, d.node.Ranges.Subnet, api.ErrInvalid)
			}
		}
		put(d, d.peers, p.Key, &next, d.peer)
	}
	return nil
}

// put replaces the object at k by v, or removes it if v is nil, with the elements that each enumerates.
func put[K comparable, V any](d *delta, m map[K]V, k K, v *V, each func(K, V, func(s *set, key, val data))) {
	old, had := m[k]
	if !d.whole {
		d.undo = append(d.undo, func() {
			if had {
				m[k] = old
			} else {
				delete(m, k)
			}
		})
	}
	if had {
		each(k, old, d.drop)
		delete(m, k)
	}
	if v != nil {
		each(k, *v, d.add)
		m[k] = *v
	}
}

func (d *delta) endpoint(_ netip.Addr, e plane.Endpoint, do func(s *set, key, val data)) {
	a := address(e.Address)
	do(d.model.sets.endpoints, device(e.Device).concat(16, a), data{})
	do(d.local, a, data{})
	do(d.idents, a, mark(uint32(e.Ident)))
	for _, p := range e.Ports {
		key, at := data{dataplane.Protocols[p.Protocol]}.concat(4, port(p.Host)), port(p.Instance)
		do(d.ports, key, a.concat(4, at))
		do(d.ports6, key, data(append(d.node.Ranges.To6(e.Address).AsSlice(), at[:4]...)))
	}
}

func (d *delta) source(a netip.Addr, id plane.Ident, do func(s *set, key, val data)) {
	do(d.model.sets.sources, address(a), data{})
	do(d.idents, address(a), mark(uint32(id)))
}

func (d *delta) pair(p plane.Pair, _ bool, do func(s *set, key, val data)) {
	do(d.model.sets.allowed, mark(uint32(p.From)).concat(4, mark(uint32(p.To))), data{})
}

func (d *delta) peer(_ api.PeerKey, p peer, do func(s *set, key, val data)) {
	for _, s := range p.Subnets {
		for _, sub := range split(s, d.node.Ranges.Subnet) {
			for _, dev := range p.in {
				do(d.fromPeers, device(dev).concat(16, address(sub)), data{})
			}
			if p.out != "" {
				do(d.toPeers, address(sub), data{})
			}
			if p.Accepts.VXLAN {
				do(d.vxlanSources, address(p.Via).concat(4, address(sub)), data{})
			}
		}
	}
}

// split returns the first addresses of the prefixes of length n in p.
func split(p netip.Prefix, n int) []netip.Addr {
	b := p.Masked().Addr().As4()
	var out []netip.Addr
	for i := range uint32(1) << (n - p.Bits()) {
		a := binary.BigEndian.AppendUint32(nil, binary.BigEndian.Uint32(b[:])+i<<(32-n))
		out = append(out, netip.AddrFrom4([4]byte(a)))
	}
	return out
}

// setService replaces a service. If the number of turns stays, the counter of turns stays too.
func (d *delta) setService(a netip.Addr, s *plane.Service) {
	old, had := d.services[a]
	if _, seen := d.turns[a]; !seen {
		d.turns[a] = -1
		if had {
			d.turns[a] = len(old.turns)
		}
	}
	if s == nil {
		put(d, d.services, a, nil, d.service)
		return
	}
	if had && slices.Equal(old.Backends, s.Backends) {
		put(d, d.services, a, &service{*s, old.turns}, d.service)
		return
	}
	d.started++
	put(d, d.services, a, &service{*s, dataplane.Turns(s.Backends, d.started)}, d.service)
}

func (d *delta) service(_ netip.Addr, s service, do func(s *set, key, val data)) {
	a := address(s.Address)
	do(d.idents, a, mark(uint32(s.Ident)))
	do(d.model.sets.services, a, data{}) // element for its chain
	for i, b := range s.turns {
		do(d.slots, a.concat(4, mark(uint32(i))), address(b))
		do(d.backends, address(b), data{})
	}
}

func (d *delta) remember(s *set, key data) value {
	v := s.has[key]
	if d.whole {
		return v
	}
	before := d.before[s]
	if before == nil {
		before = map[data]value{}
		d.before[s] = before
	}
	if _, seen := before[key]; !seen {
		before[key] = v
	}
	return v
}

func (d *delta) add(s *set, key, val data) {
	s.has[key] = value{val, d.remember(s, key).refs + 1}
}

func (d *delta) drop(s *set, key, _ data) {
	v := d.remember(s, key)
	if v.refs--; v.refs > 0 {
		s.has[key] = v
	} else {
		delete(s.has, key)
	}
}

func (d *delta) back() {
	for _, f := range slices.Backward(d.undo) {
		f()
	}
	for s, before := range d.before {
		for key, v := range before {
			if v.refs == 0 {
				delete(s.has, key)
			} else {
				s.has[key] = v
			}
		}
	}
}

// removed yields the elements to delete from a set, and added those to add. A changed element is in
// both.
func (d *delta) removed(s *set) iter.Seq2[data, data] {
	return func(yield func(data, data) bool) {
		for key, was := range d.before[s] {
			if now := s.has[key]; was.refs > 0 && (now.refs == 0 || now.data != was.data) && !yield(key, was.data) {
				return
			}
		}
	}
}

func (d *delta) added(s *set) iter.Seq2[data, data] {
	return func(yield func(data, data) bool) {
		if d.whole {
			for key, now := range s.has {
				if !yield(key, now.data) {
					return
				}
			}
			return
		}
		for key, was := range d.before[s] {
			if now := s.has[key]; now.refs > 0 && (was.refs == 0 || now.data != was.data) && !yield(key, now.data) {
				return
			}
		}
	}
}

// state returns the model as a plane.Change from nothing.
func (m *model) state() plane.Change {
	c := plane.Change{Node: &m.node}
	c.SetEndpoints = slices.Collect(maps.Values(m.endpoints))
	for _, s := range m.services {
		c.SetServices = append(c.SetServices, s.Service)
	}
	for a, id := range m.sources {
		c.SetSources = append(c.SetSources, plane.Source{Address: a, Ident: id})
	}
	c.Allow = slices.Collect(maps.Keys(m.allowed))
	for _, p := range m.peers {
		c.SetPeers = append(c.SetPeers, p.Peer)
	}
	return c
}
