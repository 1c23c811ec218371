package ebpf

import (
	"fmt"
	"slices"
)

// setService sets the ring of backends of an address. The former ring is freed when the change
// has succeeded.
func (p *Plane) setService(x *tx, a, ident uint32, ring []uint32) {
	old, had := p.services.have[a]
	if x.err != nil || had && old.Ident == ident && slices.Equal(p.rings[old.Set], ring) {
		return
	}
	set := p.nextSet
	p.nextSet++
	p.rings[set] = ring
	x.onRollback(func() { p.dropRing(set) })
	for i, b := range ring {
		if err := p.o.TlSlots.Put(objectsSlot{Set: set, Index: uint32(i)}, b); err != nil {
			x.fail(fmt.Errorf("backends of %s: %w", addr(a), writeError(p.o.TlSlots, err)))
			return
		}
	}
	p.useBackends(x, a, ident, ring)
	p.services.set(x, a, objectsService{Ident: ident, Set: set, Slots: uint32(len(ring))})
	if had {
		x.onCommit(func() { p.dropRing(old.Set) })
		p.releaseBackends(x, a, p.rings[old.Set], ring)
	}
}

func (p *Plane) dropService(x *tx, a uint32) {
	if old, had := p.services.have[a]; had {
		p.services.drop(x, a)
		x.onCommit(func() { p.dropRing(old.Set) })
		p.releaseBackends(x, a, p.rings[old.Set], nil)
	}
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

// useBackends records the backends of a ring and writes them to the kernel.
func (p *Plane) useBackends(x *tx, a, ident uint32, ring []uint32) {
	for _, b := range ring {
		old, had := p.uses[b][a]
		if had && old == ident {
			continue
		}
		p.use(a, ident, []uint32{b})
		x.onRollback(func() {
			if had {
				p.uses[b][a] = old
				return
			}
			p.removeUse(a, b)
		})
		if _, known := p.backends.have[b]; known && len(p.uses[b]) > 1 {
			continue // it has the ident of another service, which is as good
		}
		p.backends.set(x, b, objectsRemote{Ident: ident})
	}
}

// releaseBackends removes the backends of a's old ring that are not in the new one.
func (p *Plane) releaseBackends(x *tx, a uint32, old, ring []uint32) {
	for _, b := range without(old, ring, func(b uint32) uint32 { return b }) {
		ident, had := p.uses[b][a]
		if !had {
			continue
		}
		p.removeUse(a, b)
		x.onRollback(func() { p.use(a, ident, []uint32{b}) })
		if len(p.uses[b]) == 0 {
			p.backends.drop(x, b)
		}
	}
}

func (p *Plane) removeUse(a, b uint32) {
	if delete(p.uses[b], a); len(p.uses[b]) == 0 {
		delete(p.uses, b)
	}
}
