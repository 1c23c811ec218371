package nft

import (
	"encoding/binary"
	"net/netip"

	"github.com/google/nftables"
)

// sets are the table's sets and maps, by what they answer.
type sets struct {
	endpoints *set // device . address: whose packets may come from there
	local     *set // addresses of this node's instances
	idents    *set // address → ident, of instances and services
	sources   *set // remote instances; counts flows that arrive
	allowed   *set // ident . ident
	services  *set // semantic address → its chain; counts flows
	slots     *set // semantic address . turn → backend
	backends  *set // counts flows by backend
	inward    *set // device . subnet: where a peer's packets come from; counts bytes
	outward   *set // subnets that we send to by the kernel; counts bytes
	outer     *set // VXLAN peer . subnet
	sample    *set // instances here; counts some of their flows (share.go)
	full      *set // those that have their share
	asking    *set // how often those are asked for more
	held      *set // how often packets of an instance are held
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

// set is one of the table's, with what it has.
type set struct {
	nftables.Set
	has map[data]value
}

// room is for how many elements the kernel is to make a set. One that says so gets a plain array
// of buckets, which is filled and asked faster than one that grows. Where it turns out too
// small the table is made anew.
func (s *set) room() uint32 {
	if s.Size > 0 {
		return s.Size
	}
	const least = 1 << 10
	return max(least, 2*uint32(len(s.has)))
}

// data is a key, or what it maps to: as many bytes of it as the set's types have, in the order of
// the packet's or, for marks, of the machine.
type data [20]byte

// value is what an element maps to, and how many objects it is of.
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

// and is the concatenation of the first n bytes of d, whole registers, with others.
func (d data) and(n int, e data) data {
	copy(d[n:], e[:])
	return d
}
