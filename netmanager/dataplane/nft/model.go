package nft

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// model is what the table holds: the objects, and the elements that they are.
type model struct {
	*sets
	node      plane.Node
	endpoints map[netip.Addr]plane.Endpoint
	services  map[netip.Addr]service
	sources   map[netip.Addr]plane.Ident
	allowed   map[plane.Pair]bool
	peers     map[api.PeerKey]peer
	elements  map[element]value
	started   int // services that were given turns; says who is first
}

type service struct {
	plane.Service
	turns []netip.Addr
}

type peer struct {
	plane.Peer
	// Devices that its packets come from, and that ours leave by, where the kernel carries them.
	in  []string
	out string
}

// element is a set's key; value is what it maps to, and how many objects it is of.
type element struct {
	set *nftables.Set
	key string
}

type value struct {
	val  string
	refs int
}

func newModel(s *sets) *model {
	return &model{
		sets: s, endpoints: map[netip.Addr]plane.Endpoint{}, services: map[netip.Addr]service{},
		sources: map[netip.Addr]plane.Ident{}, allowed: map[plane.Pair]bool{}, peers: map[api.PeerKey]peer{},
		elements: map[element]value{},
	}
}

// delta is what a change does to the table, and how to take it back.
type delta struct {
	*model
	before map[element]value  // of the elements touched
	turns  map[netip.Addr]int // of the services touched: turns before, -1 for no service
	undo   []func()
}

// step applies c to the model; via says which device leads to a peer.
func (m *model) step(c plane.Change, via func(netip.Addr) (string, error)) (*delta, error) {
	d := &delta{model: m, before: map[element]value{}, turns: map[netip.Addr]int{}}
	if err := d.apply(c, via); err != nil {
		d.back()
		return nil, err
	}
	return d, nil
}

func (d *delta) apply(c plane.Change, via func(netip.Addr) (string, error)) error {
	if c.Node != nil {
		old := d.node
		d.undo = append(d.undo, func() { d.node = old })
		d.node = *c.Node
	}
	for _, a := range c.DropEndpoints {
		put(d, d.endpoints, a, nil, d.endpoint)
	}
	for _, a := range c.DropServices {
		d.serve(a, nil)
	}
	for _, a := range c.DropSources {
		put(d, d.sources, a, nil, sourceOf(d, a))
	}
	for _, p := range c.Deny {
		put(d, d.allowed, p, nil, pairOf(d, p))
	}
	for _, k := range c.DropPeers {
		put(d, d.peers, k, nil, d.peer)
	}
	for _, e := range c.SetEndpoints {
		if !e.Address.Is4() || e.Device == "" || len(e.Device) >= unix.IFNAMSIZ {
			return fmt.Errorf("endpoint %s on %q: %w", e.Address, e.Device, api.ErrInvalid)
		}
		put(d, d.endpoints, e.Address, &e, d.endpoint)
	}
	for _, s := range c.SetServices {
		for _, b := range s.Backends {
			if b.Weight < 1 || b.Weight > 16 || !b.Address.Is4() {
				return fmt.Errorf("backend %s of %s with weight %d: %w", b.Address, s.Address, b.Weight, api.ErrInvalid)
			}
		}
		d.serve(s.Address, &s)
	}
	for _, s := range c.SetSources {
		put(d, d.sources, s.Address, &s.Ident, sourceOf(d, s.Address))
	}
	for _, p := range c.Allow {
		yes := true
		put(d, d.allowed, p, &yes, pairOf(d, p))
	}
	for _, p := range c.SetPeers {
		next := peer{Peer: p}
		vxlan, route := plane.VXLANDevice(d.node.Prefix), ""
		if p.Takes.Route || p.Path == api.PathRoute {
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
		if p.Takes.VXLAN {
			next.in = append(next.in, vxlan)
		}
		if p.Takes.Route && route != "" { // else nothing comes from there
			next.in = append(next.in, route)
		}
		for _, s := range p.Subnets {
			if s.Bits() > d.node.Ranges.Subnet || !s.Addr().Is4() {
				return fmt.Errorf("subnet %s of peer %s is smaller than /%d: %w", s, p.Key, d.node.Ranges.Subnet, api.ErrInvalid)
			}
		}
		put(d, d.peers, p.Key, &next, d.peer)
	}
	return nil
}

// put replaces what m has at k, nil by nothing, and its elements, which each names.
func put[K comparable, V any](d *delta, m map[K]V, k K, v *V, each func(V, func(s *nftables.Set, key, val string))) {
	old, had := m[k]
	d.undo = append(d.undo, func() {
		if had {
			m[k] = old
		} else {
			delete(m, k)
		}
	})
	if had {
		each(old, d.drop)
		delete(m, k)
	}
	if v != nil {
		each(*v, d.add)
		m[k] = *v
	}
}

func (d *delta) endpoint(e plane.Endpoint, do func(*nftables.Set, string, string)) {
	a := string(four(e.Address))
	do(d.model.sets.endpoints, string(name16(e.Device))+a, "")
	do(d.local, a, "")
	do(d.idents, a, string(native(uint32(e.Ident))))
	for _, p := range e.Ports {
		// Concatenations are of whole registers.
		key, port := string([]byte{protocols[p.Protocol], 0, 0, 0})+string(big16(p.Host))+"\x00\x00", string(big16(p.Instance))+"\x00\x00"
		do(d.ports, key, a+port)
		do(d.ports6, key, string(d.node.Ranges.Twin(e.Address).AsSlice())+port)
	}
}

var protocols = map[string]byte{"tcp": unix.IPPROTO_TCP, "udp": unix.IPPROTO_UDP, "sctp": unix.IPPROTO_SCTP}

func sourceOf(d *delta, at netip.Addr) func(plane.Ident, func(*nftables.Set, string, string)) {
	return func(id plane.Ident, do func(*nftables.Set, string, string)) {
		do(d.model.sets.sources, string(four(at)), "")
		do(d.idents, string(four(at)), string(native(uint32(id))))
	}
}

func pairOf(d *delta, p plane.Pair) func(bool, func(*nftables.Set, string, string)) {
	return func(_ bool, do func(*nftables.Set, string, string)) {
		do(d.model.sets.allowed, string(native(uint32(p.From)))+string(native(uint32(p.To))), "")
	}
}

func (d *delta) peer(p peer, do func(*nftables.Set, string, string)) {
	for _, s := range p.Subnets {
		for _, sub := range split(s, d.node.Ranges.Subnet) {
			for _, dev := range p.in {
				do(d.inward, string(name16(dev))+string(four(sub)), "")
			}
			if p.out != "" {
				do(d.outward, string(four(sub)), "")
			}
			if p.Takes.VXLAN {
				do(d.outer, string(four(p.Via))+string(four(sub)), "")
			}
		}
	}
}

// split gives the first addresses of the prefixes of length n that p consists of.
func split(p netip.Prefix, n int) []netip.Addr {
	b := p.Masked().Addr().As4()
	first := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	var out []netip.Addr
	for i := range uint32(1) << (n - p.Bits()) {
		a := first + i<<(32-n)
		out = append(out, netip.AddrFrom4([4]byte{byte(a >> 24), byte(a >> 16), byte(a >> 8), byte(a)}))
	}
	return out
}

// serve replaces a service. Where the number of turns stays, so does the count of
// whose turn it is.
func (d *delta) serve(a netip.Addr, s *plane.Service) {
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
	put(d, d.services, a, &service{*s, turnsOf(s.Backends, d.started)}, d.service)
}

func (d *delta) service(s service, do func(*nftables.Set, string, string)) {
	a := string(four(s.Address))
	do(d.idents, a, string(native(uint32(s.Ident))))
	do(d.model.sets.services, a, serviceChain(s.Address))
	for i, b := range s.turns {
		do(d.slots, a+string(native(uint32(i))), string(four(b)))
		do(d.backends, string(four(b)), "")
	}
}

func (d *delta) touch(e element) value {
	v := d.elements[e]
	if _, seen := d.before[e]; !seen {
		d.before[e] = v
	}
	return v
}

func (d *delta) add(s *nftables.Set, key, val string) {
	e := element{s, key}
	d.elements[e] = value{val, d.touch(e).refs + 1}
}

func (d *delta) drop(s *nftables.Set, key, _ string) {
	e := element{s, key}
	v := d.touch(e)
	if v.refs--; v.refs > 0 {
		d.elements[e] = v
	} else {
		delete(d.elements, e)
	}
}

// back takes the change back: the kernel did not take it.
func (d *delta) back() {
	for _, f := range slices.Backward(d.undo) {
		f()
	}
	for e, v := range d.before {
		if v.refs == 0 {
			delete(d.elements, e)
		} else {
			d.elements[e] = v
		}
	}
}

// difference is which elements go and which come, by set.
func (d *delta) difference() (gone, come map[*nftables.Set][]nftables.SetElement) {
	gone, come = map[*nftables.Set][]nftables.SetElement{}, map[*nftables.Set][]nftables.SetElement{}
	for e, was := range d.before {
		now := d.elements[e]
		if was.refs > 0 && now.refs > 0 && was.val == now.val {
			continue
		}
		if was.refs > 0 {
			gone[e.set] = append(gone[e.set], d.encode(e, was.val))
		}
		if now.refs > 0 {
			come[e.set] = append(come[e.set], d.encode(e, now.val))
		}
	}
	return gone, come
}

func (d *delta) encode(e element, val string) nftables.SetElement {
	out := nftables.SetElement{Key: []byte(e.key)}
	switch {
	case e.set == d.model.sets.services:
		out.VerdictData = &expr.Verdict{Kind: expr.VerdictGoto, Chain: val}
	case val != "":
		out.Val = []byte(val)
	}
	return out
}

// state is the model as a plane.Change that makes it of nothing.
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
