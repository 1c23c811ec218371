package tunnel

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/api"
)

// Inner packets have IPv4 addresses, or the IPv6 addresses that contain these. Both are identified by the
// 32 bits of the IPv4 address.

type prefix4 struct{ addr, mask uint32 }

func newPrefix4(p netip.Prefix) prefix4 {
	if !p.IsValid() || !p.Addr().Is4() {
		return prefix4{addr: 1} // contains no address
	}
	a := p.Masked().Addr().As4()
	return prefix4{binary.BigEndian.Uint32(a[:]), uint32(^uint64(0) << (32 - p.Bits()))}
}

func (p prefix4) contains(a uint32) bool { return a&p.mask == p.addr }

// lease is a Lease in the form that the data path needs.
type lease struct {
	subnet prefix4
	claim  netip.Addr
	prefix [12]byte // prefix of instances' IPv6 addresses
	relays []netip.AddrPort
}

func newLease(l Lease) *lease {
	out := &lease{subnet: newPrefix4(l.Subnet), claim: l.Subnet.Masked().Addr()}
	if l.Ranges.Instances6.IsValid() {
		a := l.Ranges.Instances6.Addr().As16()
		copy(out.prefix[:], a[:])
	}
	for _, r := range l.Relays {
		out.relays = append(out.relays, netip.AddrPortFrom(r.Addr().Unmap(), r.Port()))
	}
	return out
}

func (l *lease) path(from netip.AddrPort) Path {
	if slices.Contains(l.relays, from) {
		return Path{Kind: api.PathRelay, Addr: from}
	}
	return Path{Kind: api.PathDirect, Addr: from}
}

// addresses returns a packet's source and destination. ok is false if the packet is not IPv4 and not
// between the IPv6 addresses of instances.
func (l *lease) addresses(p []byte) (src, dst uint32, ok bool) {
	if len(p) >= 20 && p[0]>>4 == 4 {
		return binary.BigEndian.Uint32(p[12:]), binary.BigEndian.Uint32(p[16:]), true
	}
	if len(p) >= 40 && p[0]>>4 == 6 && [12]byte(p[8:]) == l.prefix && [12]byte(p[24:]) == l.prefix {
		return binary.BigEndian.Uint32(p[20:]), binary.BigEndian.Uint32(p[36:]), true
	}
	return 0, 0, false
}

// routes finds the peer of an address, with one look-up per prefix length, the longest first.
type routes struct {
	masks []uint32
	peers map[prefix4]*peer
}

func (r *routes) find(dst uint32) *peer {
	for _, m := range r.masks {
		if p := r.peers[prefix4{dst & m, m}]; p != nil {
			return p
		}
	}
	return nil
}

// reroute rebuilds the routes. mu is held.
func (e *Engine) reroute() {
	r := &routes{peers: map[prefix4]*peer{}}
	for _, p := range e.peers {
		for _, s := range *p.subnets.Load() {
			r.peers[s] = p
			if !slices.Contains(r.masks, s.mask) {
				r.masks = append(r.masks, s.mask)
			}
		}
	}
	slices.SortFunc(r.masks, func(a, b uint32) int { return bits.OnesCount32(b) - bits.OnesCount32(a) })
	e.routes.Store(r)
}
