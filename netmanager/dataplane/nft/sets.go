package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
)

type sets struct {
	endpoints *set // device . address: sources that are allowed
	local     *set // addresses of this node's instances
	idents    *set // address → ident, of instances and services
	sources   *set // addresses of remote instances; counts arriving flows
	allowed   *set // ident . ident
	services  *set // semantic address → its chain; counts flows
	slots     *set // semantic address . turn → backend
	backends  *set // counts flows by backend
	inward    *set // device . subnet of peers' packets; counts bytes
	outward   *set // subnets of peers on kernel paths; counts bytes
	outer     *set // VXLAN peer . subnet
	sample    *set // local instances; samples their flows (share.go)
	full      *set // instances at their share
	asking    *set // rate of further flows of the instances in full
	held      *set // rate of queued packets by instance
	ports     *set // protocol . port → instance . port
	ports6    *set // the same → twin . port
}

func newSets(t *nftables.Table) *sets {
	addr, mark, dev := nftables.TypeIPAddr, nftables.TypeMark, nftables.TypeIFName
	of := func(name string, counter bool, key ...nftables.SetDatatype) *set {
		s := &set{Set: nftables.Set{Table: t, Name: name, KeyType: key[0], Counter: counter}, has: map[data]value{}}
		if len(key) > 1 {
			s.KeyType, s.Concatenation = nftables.MustConcatSetType(key...), true
		}
		return s
	}
	mapTo := func(to nftables.SetDatatype, s *set) *set {
		s.IsMap, s.DataType = true, to
		return s
	}
	dynamic := func(s *set) *set {
		s.Dynamic, s.Size = true, instances
		return s
	}
	forAWhile := func(s *set) *set {
		s.HasTimeout = true
		return s
	}
	return &sets{
		endpoints: of("endpoints", false, dev, addr),
		local:     of("local", false, addr),
		idents:    mapTo(mark, of("idents", false, addr)),
		sources:   of("sources", true, addr),
		allowed:   of("allowed", false, mark, mark),
		services:  mapTo(nftables.TypeVerdict, of("services", true, addr)),
		slots:     mapTo(addr, of("slots", false, addr, mark)),
		backends:  of("backends", true, addr),
		inward:    of("inward", true, dev, addr),
		outward:   of("outward", true, addr),
		outer:     of("outer", false, addr, addr),
		sample:    dynamic(of("sample", false, addr)),
		full:      dynamic(of("full", false, addr)),
		asking:    forAWhile(dynamic(of("asking", false, addr))),
		held:      forAWhile(dynamic(of("held", false, addr))),
		ports: mapTo(nftables.MustConcatSetType(addr, nftables.TypeInetService),
			of("ports", false, nftables.TypeInetProto, nftables.TypeInetService)),
		ports6: mapTo(nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetService),
			of("ports6", false, nftables.TypeInetProto, nftables.TypeInetService)),
	}
}

func (s *sets) all() []*set {
	return []*set{
		s.endpoints, s.local, s.idents, s.sources, s.allowed, s.services,
		s.slots, s.backends, s.inward, s.outward, s.outer, s.sample, s.full, s.asking, s.held, s.ports, s.ports6,
	}
}

// set is a set or map of the table, with its elements.
type set struct {
	nftables.Set
	has map[data]value
}

// room returns the number of elements that the kernel creates a set for. Such a set is a fixed
// hash table, which is faster than a growing one. If it becomes too small the table is
// replaced.
func (s *set) room() uint32 {
	if s.Size > 0 {
		return s.Size
	}
	const least = 1 << 10
	return max(least, 2*uint32(len(s.has)))
}

// data is a key or a value: as many bytes as the set's types have, in network order or, for
// marks, in host order.
type data [20]byte

// value is the data of an element, and the number of objects that need it.
type value struct {
	data
	refs int
}

func address(a netip.Addr) (d data) {
	b := a.As4()
	copy(d[:], b[:])
	return d
}

func (d data) addr() netip.Addr { return netip.AddrFrom4([4]byte(d[:4])) }

func mark(v uint32) (d data) {
	binary.NativeEndian.PutUint32(d[:], v)
	return d
}

func port(n uint16) (d data) {
	binary.BigEndian.PutUint16(d[:], n)
	return d
}

func device(name string) (d data) {
	copy(d[:], name)
	return d
}

// and concatenates the first n bytes of d with e, in whole registers.
func (d data) and(n int, e data) data {
	copy(d[n:], e[:])
	return d
}
