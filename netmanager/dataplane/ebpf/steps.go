package ebpf

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
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
func (p *Plane) settings(x *tx, links *links) error {
	r, old := p.node.Ranges, p.set
	s := objectsSettings{
		Layout: layout, Gen: old.Gen + 1, InstancesMask: ^uint32(0), ServicesMask: ^uint32(0),
		Hold: uint32(links.index(p.node.Hold)), Tunnel: uint32(links.index(p.node.Tunnel)),
		Places: p.o.TlFlows.MaxEntries() / kinds, Share: p.o.TlFlows.MaxEntries() / kinds / sharers, Unanswered: p.unanswered, Answered: p.answered,
		Seed: old.Seed,
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
		return fmt.Errorf("write settings: %w", err)
	}
	p.set = s
	x.did(func() {
		old.Gen, old.Seed = p.set.Gen+1, p.set.Seed // the index of flows that began meanwhile depends on it
		p.set = old
		_ = p.o.TlSettings.Put(uint32(0), old)
	})
	return nil
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

// networks closes and opens networks outside the ranges.
func (p *Plane) networks(x *tx, n plane.Node) error {
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
	if err := p.exempt.become(x, key(n.Open)); err != nil {
		return err
	}
	return p.closed.become(x, key(slices.Concat(dataplane.Closed, n.Closed)))
}

// setPeers applies the changes of peers.
func (p *Plane) setPeers(x *tx, c plane.Change, links *links, all bool) error {
	set := keys(c.SetPeers, func(v plane.Peer) api.PeerKey { return v.Key })
	for _, v := range c.SetPeers {
		if err := p.setPeer(x, v, links); err != nil {
			return err
		}
	}
	for _, k := range c.DropPeers {
		if old, ok := p.peers[k]; ok && !set[k] {
			p.know(x, k, peer{}, false)
			if err := p.dropSubnets(x, old.id, nil); err != nil {
				return err
			}
		}
	}
	if !all {
		return nil
	}
	ids := map[uint32]bool{}
	for _, v := range p.peers {
		ids[v.id] = true
	}
	for k, v := range maps.Clone(p.prefixes.have) {
		if !ids[v.Id] {
			if err := p.prefixes.drop(x, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// The paths of enum way in bpf/types.h.
const (
	wayRoute = 1 << iota
	wayVXLAN
)

func (p *Plane) setPeer(x *tx, v plane.Peer, links *links) error {
	n := peer{Peer: v}
	if old, ok := p.peers[v.Key]; ok {
		n.id = old.id
	} else {
		id, err := p.newID(v)
		if err != nil {
			return err
		}
		n.id = id
	}
	e := objectsPeer{Id: n.id, Mtu: uint32(v.MTU)}
	switch v.Path {
	case api.PathRoute:
		e.Send = wayRoute
	case api.PathVXLAN:
		e.Send = wayVXLAN
		if d := links.get(plane.VXLANDevice(p.node.Prefix)); d != nil && (e.Mtu == 0 || int(e.Mtu) > d.Attrs().MTU) {
			e.Mtu = uint32(d.Attrs().MTU)
		}
	}
	if v.Takes.Route {
		e.Path |= wayRoute
	}
	if v.Takes.VXLAN {
		e.Path |= wayVXLAN
	}
	if (e.Path|e.Send)&wayRoute != 0 {
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
		if !s.Addr().Is4() {
			return fmt.Errorf("subnet %s of peer %s is not IPv4: %w", s, v.Key, api.ErrInvalid)
		}
		k := objectsPrefix{Len: uint32(s.Bits()), Address: be32(s.Masked().Addr())}
		keep[k] = true
		if err := p.prefixes.set(x, k, e); err != nil {
			return err
		}
	}
	p.know(x, v.Key, n, true)
	return p.dropSubnets(x, n.id, keep)
}

// know adds or removes a peer.
func (p *Plane) know(x *tx, k api.PeerKey, v peer, known bool) {
	old, had := p.peers[k]
	if known {
		p.peers[k] = v
	} else {
		delete(p.peers, k)
	}
	x.did(func() {
		delete(p.peers, k)
		if had {
			p.peers[k] = old
		}
	})
}

func (p *Plane) dropSubnets(x *tx, id uint32, keep map[objectsPrefix]bool) error {
	for k, v := range maps.Clone(p.prefixes.have) {
		if v.Id == id && !keep[k] {
			if err := p.prefixes.drop(x, k); err != nil {
				return err
			}
		}
	}
	return nil
}

// newID returns a peer's index among the counters of traffic: its former one, or a free one.
func (p *Plane) newID(v plane.Peer) (uint32, error) {
	taken := map[uint32]bool{}
	for _, o := range p.peers {
		taken[o.id] = true
	}
	for _, s := range v.Subnets {
		e, ok := p.prefixes.have[objectsPrefix{Len: uint32(s.Bits()), Address: be32(s.Masked().Addr())}]
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
	return 0, fmt.Errorf("no place for another peer, the most is %d: %w", p.o.TlTraffic.MaxEntries(), api.ErrUnavailable)
}

// setEndpoints applies the changes of endpoints.
func (p *Plane) setEndpoints(x *tx, c plane.Change, links *links, all bool) error {
	set := keys(c.SetEndpoints, func(v plane.Endpoint) netip.Addr { return v.Address })
	for _, e := range c.SetEndpoints {
		d := links.get(e.Device)
		if d == nil && all {
			// The device was removed. Keep the ident of the address.
			if err := p.endpoints.set(x, be32(e.Address), objectsEndpoint{Ident: uint32(e.Ident), Queued: 1}); err != nil {
				return err
			}
			p.publish(x, e.Address, e.Ports)
			continue
		}
		if d == nil {
			return fmt.Errorf("device %s of %s: %w", e.Device, e.Address, api.ErrNotFound)
		}
		v := objectsEndpoint{Ident: uint32(e.Ident), Ifindex: uint32(d.Attrs().Index)}
		if held, err := links.queued(d); err != nil {
			return err
		} else if held {
			v.Queued = 1
		}
		old, had := p.endpoints.have[be32(e.Address)]
		// The programs first: everything that the endpoint sends is judged from the start.
		deviceGone := false
		for h, prog := range p.wanted(d.Attrs().Index) {
			err := p.attach(x, h, prog, all)
			if all && errors.Is(err, unix.ENODEV) {
				deviceGone = true
			} else if err != nil {
				return err
			}
		}
		if deviceGone { // removed since it was listed
			if err := p.endpoints.set(x, be32(e.Address), objectsEndpoint{Ident: uint32(e.Ident), Queued: 1}); err != nil {
				return err
			}
			p.publish(x, e.Address, e.Ports)
			continue
		}
		if err := p.devices.set(x, v.Ifindex, be32(e.Address)); err != nil {
			return err
		}
		if err := p.endpoints.set(x, be32(e.Address), v); err != nil {
			return err
		}
		if had && old.Ifindex != v.Ifindex && p.devices.have[old.Ifindex] == be32(e.Address) {
			if err := p.devices.drop(x, old.Ifindex); err != nil {
				return err
			}
		}
		p.publish(x, e.Address, e.Ports)
	}
	for _, a := range c.DropEndpoints {
		old, had := p.endpoints.have[be32(a)]
		if !had || set[a] {
			continue
		}
		if err := p.endpoints.drop(x, be32(a)); err != nil {
			return err
		}
		// The programs stay as long as the device, and let nothing pass.
		if p.devices.have[old.Ifindex] == be32(a) {
			if err := p.devices.drop(x, old.Ifindex); err != nil {
				return err
			}
		}
		p.publish(x, a, nil)
	}
	if !all {
		return nil
	}
	for i, a := range maps.Clone(p.devices.have) {
		if p.endpoints.have[a].Ifindex != i {
			if err := p.devices.drop(x, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// publish sets an endpoint's ports.
func (p *Plane) publish(x *tx, a netip.Addr, ports []api.PortMap) {
	old := p.ports[a]
	put := func(v []api.PortMap) {
		if delete(p.ports, a); len(v) > 0 {
			p.ports[a] = v
		}
	}
	put(ports)
	x.did(func() { put(old) })
}

// queued reports whether a device has a queueing discipline, which limits bandwidth.
func (l *links) queued(d netlink.Link) (bool, error) {
	if l.queues == nil {
		all, err := netlink.QdiscList(nil)
		if err != nil {
			return false, fmt.Errorf("list queueing disciplines: %w", err)
		}
		l.queues = map[int]bool{}
		for _, q := range all {
			if t := q.Type(); t != "noqueue" && t != "clsact" {
				l.queues[q.Attrs().LinkIndex] = true
			}
		}
	}
	return l.queues[d.Attrs().Index], nil
}

// wanted returns an endpoint's programs.
func (p *Plane) wanted(device int) map[hook]*ebpf.Program {
	return map[hook]*ebpf.Program{{device, false}: p.o.TlLeave, {device, true}: p.o.TlLast}
}

// hook attaches the programs of all devices but endpoints'.
func (p *Plane) hook(x *tx, links *links, all bool) error {
	want := map[hook]*ebpf.Program{}
	if p.set.Hold != 0 {
		want[hook{int(p.set.Hold), false}] = p.o.TlHeld
	}
	if p.set.Tunnel != 0 {
		want[hook{int(p.set.Tunnel), false}] = p.o.TlHeld
	}
	if p.set.Vxlan != 0 {
		want[hook{int(p.set.Vxlan), false}] = p.o.TlArrive
	}
	for _, v := range p.peers {
		if v.device > 1 && v.device != int(p.set.Tunnel) && v.device != int(p.set.Hold) {
			want[hook{v.device, false}] = p.o.TlArrive
		}
	}
	for h, prog := range want {
		if err := p.attach(x, h, prog, all); err != nil {
			return err
		}
	}
	if len(p.hooks) > 2*(2*len(p.devices.have)+len(want))+gonePrograms {
		p.forgetGone()
	}
	for h, prog := range maps.Clone(p.hooks) {
		if want[h] != nil || prog == p.o.TlLeave || prog == p.o.TlLast {
			continue
		}
		if prog != p.o.TlArrive && prog != p.o.TlHeld { // of an earlier start
			info, err := prog.Info()
			if err == nil && (info.Name == "tl_leave" || info.Name == "tl_last") {
				err := p.attach(x, h, p.wanted(h.device)[h], all)
				if err != nil && !errors.Is(err, unix.ENODEV) { // attach has removed a device that is gone
					return err
				}
				continue
			}
		}
		if err := p.detach(x, h); err != nil {
			return err
		}
	}
	return nil
}

// gonePrograms is after how many programs it pays to check whether their devices are gone.
const gonePrograms = 64

// forgetGone removes the records of programs on endpoints' devices that are gone. The kernel
// has removed the programs.
func (p *Plane) forgetGone() {
	for h := range p.hooks {
		if _, known := p.devices.have[uint32(h.device)]; known {
			continue
		}
		var none netlink.LinkNotFoundError
		if _, err := netlink.LinkByIndex(h.device); errors.As(err, &none) {
			delete(p.hooks, h)
		}
	}
}

// attach attaches a program to a hook. sure asks the kernel whether it is there; otherwise the
// record counts.
func (p *Plane) attach(x *tx, h hook, prog *ebpf.Program, sure bool) error {
	old := p.hooks[h]
	if old != nil && sure {
		info, err := old.Info()
		if err != nil {
			return fmt.Errorf("read a program: %w", err)
		}
		id, _ := info.ID()
		if ids, err := p.at.attached(h); err == nil && !slices.Contains(ids, id) {
			old = nil
		}
	}
	if old == prog {
		return nil
	}
	err := p.at.attach(h, prog, old)
	if old != nil && errors.Is(err, os.ErrNotExist) { // it was removed with its device
		err = p.at.attach(h, prog, nil)
	}
	if errors.Is(err, unix.ENODEV) {
		delete(p.hooks, h) // the kernel removed the program with its device
	}
	if err != nil {
		return fmt.Errorf("attach a program to device %d: %w", h.device, err)
	}
	p.hooks[h] = prog
	x.did(func() {
		if old == nil {
			_ = p.at.detach(h, prog)
			delete(p.hooks, h)
			return
		}
		_ = p.at.attach(h, old, prog)
		p.hooks[h] = old
	})
	return nil
}

func (p *Plane) detach(x *tx, h hook) error {
	old := p.hooks[h]
	if err := p.at.detach(h, old); err != nil && !gone(err) {
		return fmt.Errorf("detach a program from device %d: %w", h.device, err)
	}
	delete(p.hooks, h)
	x.did(func() {
		if p.at.attach(h, old, nil) == nil {
			p.hooks[h] = old
		}
	})
	return nil
}

// gone reports that what was to be removed does not exist.
func gone(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ENODEV) || errors.Is(err, unix.EINVAL)
}

// setService sets the ring of backends of an address. The former ring is freed when the change
// stands.
func (p *Plane) setService(x *tx, a, ident uint32, ring []uint32) error {
	old, had := p.services.have[a]
	if had && old.Ident == ident && slices.Equal(p.rings[old.Set], ring) {
		return nil
	}
	set := p.nextSet
	p.nextSet++
	p.rings[set] = ring
	x.did(func() { p.dropRing(set) })
	for i, b := range ring {
		if err := p.o.TlSlots.Put(objectsSlot{Set: set, Index: uint32(i)}, b); err != nil {
			return fmt.Errorf("backends of %s: %w", addr(a), full(p.o.TlSlots, err))
		}
	}
	if err := p.useBackends(x, a, ident, ring); err != nil {
		return err
	}
	if err := p.services.set(x, a, objectsService{Ident: ident, Set: set, Slots: uint32(len(ring))}); err != nil {
		return err
	}
	if !had {
		return nil
	}
	x.finally(func() { p.dropRing(old.Set) })
	return p.disuse(x, a, p.rings[old.Set], ring)
}

func (p *Plane) dropService(x *tx, a uint32) error {
	old, had := p.services.have[a]
	if !had {
		return nil
	}
	if err := p.services.drop(x, a); err != nil {
		return err
	}
	x.finally(func() { p.dropRing(old.Set) })
	return p.disuse(x, a, p.rings[old.Set], nil)
}

func (p *Plane) dropRing(set uint32) {
	for i := range p.rings[set] {
		_ = p.o.TlSlots.Delete(objectsSlot{Set: set, Index: uint32(i)})
	}
	delete(p.rings, set)
}

// use records that service a has the backends of a ring.
func (p *Plane) use(a, ident uint32, ring []uint32) {
	for _, b := range ring {
		if p.uses[b] == nil {
			p.uses[b] = map[uint32]uint32{}
		}
		p.uses[b][a] = ident
	}
}

// useBackends writes them to the kernel.
func (p *Plane) useBackends(x *tx, a, ident uint32, ring []uint32) error {
	for _, b := range ring {
		old, had := p.uses[b][a]
		if had && old == ident {
			continue
		}
		p.use(a, ident, []uint32{b})
		x.did(func() {
			if had {
				p.uses[b][a] = old
				return
			}
			p.forget(a, b)
		})
		if _, known := p.backends.have[b]; known && len(p.uses[b]) > 1 {
			continue // the ident is known; a second service's is no better
		}
		if err := p.backends.set(x, b, objectsRemote{Ident: ident}); err != nil {
			return err
		}
	}
	return nil
}

// disuse removes the backends of a's old ring that are not in the new one.
func (p *Plane) disuse(x *tx, a uint32, old, ring []uint32) error {
	stay := keys(ring, func(b uint32) uint32 { return b })
	for _, b := range old {
		ident, had := p.uses[b][a]
		if stay[b] || !had {
			continue
		}
		p.forget(a, b)
		x.did(func() { p.use(a, ident, []uint32{b}) })
		if len(p.uses[b]) == 0 {
			if err := p.backends.drop(x, b); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Plane) forget(a, b uint32) {
	if delete(p.uses[b], a); len(p.uses[b]) == 0 {
		delete(p.uses, b)
	}
}
