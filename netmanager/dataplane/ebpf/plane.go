package ebpf

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"

	"github.com/treeline-edge/treeline/api"
	"github.com/treeline-edge/treeline/netmanager/dataplane"
	"github.com/treeline-edge/treeline/netmanager/dataplane/nft"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// Plane is a dataplane.Plane of tc programs. Its methods must always be called in the same
// network namespace.
type Plane struct {
	prefix   string
	attacher attacher
	edge     *nft.Edge
	open     bool // the programs are loaded, and the fields below match the kernel
	o        objectsObjects
	hooks    map[hook]*ebpf.Program // where the plane's programs are
	set      objectsSettings

	unanswered, answered uint32 // ticks

	endpoints *table[uint32, objectsEndpoint]
	devices   *table[uint32, uint32]
	services  *table[uint32, objectsService]
	backends  *table[uint32, objectsRemote]
	sources   *table[uint32, objectsRemote]
	allowed   *table[objectsPair, uint32]
	prefixes  *table[objectsPrefix, objectsPeer]
	closed    *table[objectsNetwork, uint32]
	exempt    *table[objectsNetwork, uint32]
	rings     map[uint32][]uint32 // slots by set
	nextSet   uint32

	node  plane.Node
	ports map[netip.Addr][]api.PortMap // of endpoints
	peers map[api.PeerKey]peer
	uses  map[uint32]map[uint32]uint32 // backend → services with it → ident
}

// peer is the state of a peer that the maps do not contain.
type peer struct {
	plane.Peer
	id     uint32
	device int // by which its unencrypted packets arrive, 0: none
}

// New returns the plane whose names begin with prefix. It changes nothing in the kernel.
func New(prefix string) (*Plane, error) {
	if prefix == "" || len(prefix) > 7 {
		return nil, fmt.Errorf("prefix %q is not 1 to 7 letters: %w", prefix, api.ErrInvalid)
	}
	return &Plane{prefix: prefix, attacher: newAttacher(), edge: nft.NewEdge(prefix)}, nil
}

// Start loads the programs, with the maps of an earlier start if they fit, and reads them. It attaches
// nothing. If the kernel cannot run the plane, the error is ErrUnavailable. The first Sync starts a plane
// that is not started.
func (p *Plane) Start() error {
	if p.open {
		return nil
	}
	if err := attachable(); err != nil {
		return err
	}
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	f, err := find(p.attacher, p.prefix, links)
	if err != nil {
		return err
	}
	defer f.Close()
	var old objectsSettings
	if m := f.maps["tl_settings"]; m != nil {
		if err := m.Lookup(uint32(0), &old); err != nil || old.Layout != layout {
			f.maps = nil
		}
	}
	err = load(&p.o, f.maps)
	if errors.Is(err, ebpf.ErrMapIncompatible) {
		// Of an older netmanager: its flows cannot be read.
		old, err = objectsSettings{}, load(&p.o, nil)
	}
	if err != nil {
		return err
	}
	p.set = old
	p.hooks = map[hook]*ebpf.Program{}
	for h, prog := range f.hooks {
		if p.hooks[h], err = prog.Clone(); err != nil {
			return errors.Join(err, p.Close())
		}
	}
	if err := p.read(); err != nil {
		return errors.Join(err, p.Close())
	}
	p.open = true
	return nil
}

func (p *Plane) read() error {
	p.endpoints = newTable[uint32, objectsEndpoint](p.o.TlEndpoints)
	p.endpoints.merge = func(v, old objectsEndpoint) objectsEndpoint { v.Held, v.Since = old.Held, old.Since; return v }
	p.devices = newTable[uint32, uint32](p.o.TlDevices)
	p.services = newTable[uint32, objectsService](p.o.TlServices)
	p.services.merge = func(v, old objectsService) objectsService { v.Turn = old.Turn; return v }
	count := func(v, old objectsRemote) objectsRemote { v.Used = old.Used; return v }
	p.backends = newTable[uint32, objectsRemote](p.o.TlBackends)
	p.sources = newTable[uint32, objectsRemote](p.o.TlSources)
	p.backends.merge, p.sources.merge = count, count
	p.allowed = newTable[objectsPair, uint32](p.o.TlAllowed)
	p.prefixes = newTable[objectsPrefix, objectsPeer](p.o.TlPeers)
	p.closed = newTable[objectsNetwork, uint32](p.o.TlClosed)
	p.exempt = newTable[objectsNetwork, uint32](p.o.TlOpen)
	for _, load := range []func() error{
		p.endpoints.load, p.devices.load, p.services.load, p.backends.load, p.sources.load,
		p.allowed.load, p.prefixes.load, p.closed.load, p.exempt.load,
	} {
		if err := load(); err != nil {
			return err
		}
	}
	slots, err := dump[objectsSlot, uint32](p.o.TlSlots)
	if err != nil {
		return err
	}
	p.rings, p.nextSet = map[uint32][]uint32{}, 1
	for s := range slots {
		p.nextSet = max(p.nextSet, s.Set+1)
		p.rings[s.Set] = nil
	}
	for _, s := range p.services.have {
		ring := make([]uint32, s.Slots)
		for i := range ring {
			ring[i] = slots[objectsSlot{Set: s.Set, Index: uint32(i)}]
			delete(slots, objectsSlot{Set: s.Set, Index: uint32(i)})
		}
		p.rings[s.Set] = ring
	}
	for s := range slots { // of an interrupted change
		_ = p.o.TlSlots.Delete(s)
	}
	maps.DeleteFunc(p.rings, func(_ uint32, ring []uint32) bool { return ring == nil })
	p.ports, p.peers, p.uses = map[netip.Addr][]api.PortMap{}, map[api.PeerKey]peer{}, map[uint32]map[uint32]uint32{}
	for a, s := range p.services.have {
		p.use(a, s.Ident, p.rings[s.Set])
	}
	return nil
}

// Sync implements dataplane.Plane.
func (p *Plane) Sync(_ context.Context, s plane.State) error {
	if err := dataplane.CheckPrefix(p.prefix, s.Node); err != nil {
		return err
	}
	if err := p.Start(); err != nil {
		return err
	}
	// Drop all entries, and set those of s: an entry in both is kept, see steps.
	c := plane.Change{
		Node: &s.Node, SetEndpoints: s.Endpoints, SetServices: s.Services, SetSources: s.Sources,
		Allow: s.Allowed, SetPeers: s.Peers, DropPeers: slices.Collect(maps.Keys(p.peers)),
	}
	for a := range p.endpoints.have {
		c.DropEndpoints = append(c.DropEndpoints, addr(a))
	}
	for a := range p.services.have {
		c.DropServices = append(c.DropServices, addr(a))
	}
	for a := range p.sources.have {
		c.DropSources = append(c.DropSources, addr(a))
	}
	for k := range p.allowed.have {
		c.Deny = append(c.Deny, plane.Pair{From: plane.Ident(k.From), To: plane.Ident(k.To)})
	}
	return p.change(c, true)
}

// without returns the keys of drop that no element of set has.
func without[K comparable, T any](drop []K, set []T, key func(T) K) []K {
	kept := make(map[K]bool, len(set))
	for _, t := range set {
		kept[key(t)] = true
	}
	return slices.DeleteFunc(slices.Clone(drop), func(k K) bool { return kept[k] })
}

// Apply implements dataplane.Plane.
func (p *Plane) Apply(_ context.Context, c plane.Change) error {
	if !p.open {
		return dataplane.NotSynced("change")
	}
	return p.change(c, false)
}

// change applies c as a whole or not at all. all means that c is the whole state: entries that c
// does not name are removed too.
func (p *Plane) change(c plane.Change, all bool) error {
	if err := dataplane.Check(c); err != nil {
		return err
	}
	x := &tx{}
	if p.steps(x, c, all); x.err != nil {
		x.rollback()
		return x.err
	}
	x.commit()
	if len(c.End)+len(c.Retry) > 0 {
		return p.end(c.End, c.Retry)
	}
	return nil
}

// steps carries out c, dependencies first. An entry that c both drops and sets is set.
func (p *Plane) steps(x *tx, c plane.Change, all bool) {
	links, err := devices(all)
	if x.fail(err) {
		return
	}
	if c.Node != nil {
		p.networks(x, *c.Node)
		p.readLifetimes()
		old := p.node
		p.node = *c.Node
		x.onRollback(func() { p.node = old })
	}
	p.settings(x, links)
	for _, v := range c.Allow {
		p.allowed.set(x, pair(v), 1)
	}
	for _, s := range c.SetSources {
		p.sources.set(x, be32(s.Address), objectsRemote{Ident: uint32(s.Ident)})
	}
	p.setPeers(x, c, links, all)
	p.setEndpoints(x, c, links, all)
	p.attachDevices(x, all)
	for _, s := range c.SetServices {
		p.setService(x, be32(s.Address), uint32(s.Ident), ring(s.Backends))
	}
	for _, a := range without(c.DropServices, c.SetServices, func(v plane.Service) netip.Addr { return v.Address }) {
		p.dropService(x, be32(a))
	}
	for _, a := range without(c.DropSources, c.SetSources, func(v plane.Source) netip.Addr { return v.Address }) {
		p.sources.drop(x, be32(a))
	}
	for _, v := range without(c.Deny, c.Allow, func(v plane.Pair) plane.Pair { return v }) {
		p.allowed.drop(x, pair(v))
	}
	if x.err == nil {
		x.fail(p.edge.Replace(p.node, p.ports, all))
	}
	// The new generation makes flows check their dependencies again.
	p.settings(x, links)
}

func pair(v plane.Pair) objectsPair { return objectsPair{From: uint32(v.From), To: uint32(v.To)} }

// Close implements dataplane.Plane.
func (p *Plane) Close() error {
	for _, prog := range p.hooks {
		prog.Close()
	}
	p.hooks, p.open = nil, false
	p.edge.Close()
	return p.o.Close()
}

// Remove detaches all programs, and deletes the nftables table. The kernel frees the maps with
// the last program.
func (p *Plane) Remove(context.Context) error {
	links, err := netlink.LinkList()
	if err != nil {
		return fmt.Errorf("list devices: %w", err)
	}
	f, err := find(p.attacher, p.prefix, links)
	if err != nil {
		return err
	}
	defer f.Close()
	for h, prog := range f.hooks {
		if err := p.attacher.detach(h, prog); err != nil && !notFound(err) {
			return fmt.Errorf("detach a program from device %d: %w", h.device, err)
		}
	}
	return errors.Join(p.edge.Remove(), p.Close())
}

// ring returns the backends' addresses in the order of their turns.
func ring(backends []plane.Backend) []uint32 {
	var out []uint32
	for _, a := range dataplane.Turns(backends, 0) {
		out = append(out, be32(a))
	}
	return out
}
