package ebpf

import (
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// links are the namespace's devices, as far as a change needs them.
type links struct {
	whole  bool
	names  map[string]netlink.Link
	queues map[int]bool // by index: devices with a queueing discipline
}

// devices reads all devices at once, for a change of the whole state.
func devices(all bool) (*links, error) {
	l := &links{whole: all, names: map[string]netlink.Link{}}
	if !all {
		return l, nil
	}
	list, err := netlink.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list devices: %w", err)
	}
	for _, d := range list {
		l.names[d.Attrs().Name] = d
	}
	return l, nil
}

// get returns the device of that name, nil if there is none.
func (l *links) get(name string) netlink.Link {
	d, ok := l.names[name]
	if !ok && !l.whole && name != "" {
		d, _ = netlink.LinkByName(name)
		l.names[name] = d
	}
	return d
}

// index returns a device's index, 0 if there is none.
func (l *links) index(name string) int {
	if d := l.get(name); d != nil {
		return d.Attrs().Index
	}
	return 0
}

// settings writes the settings of the whole plane, with a new generation.
func (p *Plane) settings(x *tx, links *links) {
	if x.err != nil {
		return
	}
	r, old := p.node.Ranges, p.set
	s := objectsSettings{
		Layout: layout, Gen: old.Gen + 1, InstancesMask: ^uint32(0), ServicesMask: ^uint32(0),
		Hold: uint32(links.index(p.node.Queue)), Tunnel: uint32(links.index(p.node.Tunnel)),
		Places: p.o.TlFlows.MaxEntries() / kinds, Share: p.o.TlFlows.MaxEntries() / kinds / sharers,
		Unanswered: p.unanswered, Answered: p.answered, Seed: old.Seed,
	}
	if s.Seed[0] == 0 {
		s.Seed = seed()
	}
	if r.Instances.IsValid() && r.Services.IsValid() { // otherwise there is nothing to do
		s.Instances, s.InstancesMask = be32(r.Instances.Masked().Addr()), mask32(r.Instances.Bits())
		s.Services, s.ServicesMask = be32(r.Services.Masked().Addr()), mask32(r.Services.Bits())
	}
	if p.node.VXLAN != 0 {
		s.Vxlan = uint32(links.index(plane.VXLANDevice(p.node.Prefix)))
	}
	for i, b := range []byte(p.prefix) {
		s.Prefix[i] = int8(b)
	}
	i6, s6 := words(r.Instances6.Addr()), words(r.Services6.Addr())
	copy(s.Instances6[:], i6[:])
	copy(s.Services6[:], s6[:])
	if err := p.o.TlSettings.Put(uint32(0), s); err != nil {
		x.fail(fmt.Errorf("write settings: %w", err))
		return
	}
	p.set = s
	x.onRollback(func() {
		old.Gen, old.Seed = p.set.Gen+1, p.set.Seed // the index of flows that began meanwhile depends on it
		p.set = old
		_ = p.o.TlSettings.Put(uint32(0), old)
	})
}

// seed returns a seed for the flows' hash without zero parts.
func seed() (s [5]uint64) {
	for i := range s {
		var b [8]byte
		_, _ = rand.Read(b[:]) // never fails
		s[i] = binary.NativeEndian.Uint64(b[:]) | 1
	}
	return s
}

func (p *Plane) networks(x *tx, n plane.Node) {
	key := func(all []netip.Prefix) map[objectsNetwork]uint32 {
		m := map[objectsNetwork]uint32{}
		for _, f := range all {
			k := objectsNetwork{Len: uint32(f.Bits()), Address: words(f.Masked().Addr())}
			if f.Addr().Is4() {
				k.Len += 96
			}
			m[k] = 1
		}
		return m
	}
	p.exempt.replace(x, key(n.Open))
	p.closed.replace(x, key(slices.Concat(dataplane.Closed, n.Closed)))
}

func (p *Plane) setPeers(x *tx, c plane.Change, links *links, all bool) {
	for _, v := range c.SetPeers {
		p.setPeer(x, v, links)
	}
	for _, k := range without(c.DropPeers, c.SetPeers, func(v plane.Peer) api.PeerKey { return v.Key }) {
		if old, ok := p.peers[k]; ok {
			assign(x, p.peers, k, nil)
			p.prefixes.dropUnless(x, func(_ objectsPrefix, v objectsPeer) bool { return v.Id != old.id })
		}
	}
	if all {
		ids := map[uint32]bool{}
		for _, v := range p.peers {
			ids[v.id] = true
		}
		p.prefixes.dropUnless(x, func(_ objectsPrefix, v objectsPeer) bool { return ids[v.Id] })
	}
}

// The values of enum path in bpf/types.h.
const (
	pathRoute = 1 << iota
	pathVXLAN
)

func (p *Plane) setPeer(x *tx, v plane.Peer, links *links) {
	n := peer{Peer: v}
	if old, ok := p.peers[v.Key]; ok {
		n.id = old.id
	} else {
		id, err := p.newID(v)
		if x.fail(err) {
			return
		}
		n.id = id
	}
	e := objectsPeer{Id: n.id, Mtu: uint32(v.MTU)}
	switch v.Path {
	case api.PathRoute:
		e.Send = pathRoute
	case api.PathVXLAN:
		e.Send = pathVXLAN
		if d := links.get(plane.VXLANDevice(p.node.Prefix)); d != nil && (e.Mtu == 0 || int(e.Mtu) > d.Attrs().MTU) {
			e.Mtu = uint32(d.Attrs().MTU)
		}
	}
	if v.Accepts.Route {
		e.Path |= pathRoute
	}
	if v.Accepts.VXLAN {
		e.Path |= pathVXLAN
	}
	if (e.Path|e.Send)&pathRoute != 0 {
		if routes, err := netlink.RouteGet(v.Via.AsSlice()); err == nil && len(routes) > 0 {
			n.device = routes[0].LinkIndex
		}
	}
	if v.Via.Is4() {
		e.Family, e.Via[0] = unix.AF_INET, be32(v.Via)
	} else if v.Via.IsValid() {
		e.Family, e.Via = unix.AF_INET6, words(v.Via)
	}
	keep := map[objectsPrefix]bool{}
	for _, s := range v.Subnets {
		k := prefix(s)
		keep[k] = true
		p.prefixes.set(x, k, e)
	}
	assign(x, p.peers, v.Key, &n)
	p.prefixes.dropUnless(x, func(k objectsPrefix, v objectsPeer) bool { return v.Id != n.id || keep[k] })
}

func prefix(p netip.Prefix) objectsPrefix {
	return objectsPrefix{Len: uint32(p.Bits()), Address: be32(p.Masked().Addr())}
}

// newID returns a peer's index among the counters of traffic: its former one, or a free one.
func (p *Plane) newID(v plane.Peer) (uint32, error) {
	taken := map[uint32]bool{}
	for _, o := range p.peers {
		taken[o.id] = true
	}
	for _, s := range v.Subnets {
		e, ok := p.prefixes.have[prefix(s)]
		if ok && !taken[e.Id] {
			return e.Id, nil
		}
	}
	for _, e := range p.prefixes.have {
		taken[e.Id] = true
	}
	for id := range p.o.TlTraffic.MaxEntries() {
		if !taken[id] {
			cpus, err := ebpf.PossibleCPU()
			if err != nil {
				return 0, err
			}
			return id, p.o.TlTraffic.Put(id, make([]objectsTraffic, cpus))
		}
	}
	return 0, fmt.Errorf("add a peer: the plane has its maximum of %d: %w", p.o.TlTraffic.MaxEntries(), api.ErrUnavailable)
}
