package nft

import (
	"github.com/google/nftables"
	"github.com/google/nftables/binaryutil"
)

// sets are the table's sets and maps, by what they answer.
type sets struct {
	endpoints *nftables.Set // device . address: whose packets may come from there
	local     *nftables.Set // addresses of this node's instances
	idents    *nftables.Set // address → ident, of instances and services
	sources   *nftables.Set // remote instances; counts flows that arrive
	allowed   *nftables.Set // ident . ident
	services  *nftables.Set // semantic address → its chain; counts flows
	slots     *nftables.Set // semantic address . turn → backend
	backends  *nftables.Set // counts flows by backend
	inward    *nftables.Set // device . subnet: where a peer's packets come from; counts bytes
	outward   *nftables.Set // subnets that we send to by the kernel; counts bytes
	outer     *nftables.Set // VXLAN peer . subnet
	sample    *nftables.Set // instances here; counts some of their flows (share.go)
	full      *nftables.Set // those that have their share
	asking    *nftables.Set // how often those are asked for more
	ports     *nftables.Set // protocol . port → instance . port
	ports6    *nftables.Set // the same → twin . port
}

func newSets(t *nftables.Table) *sets {
	addr, mark, dev := nftables.TypeIPAddr, nftables.TypeMark, nftables.TypeIFName
	set := func(name string, counter bool, key ...nftables.SetDatatype) *nftables.Set {
		s := &nftables.Set{Table: t, Name: name, KeyType: key[0], Counter: counter, KeyByteOrder: binaryutil.BigEndian}
		if len(key) > 1 {
			s.KeyByteOrder = binaryutil.NativeEndian
			s.KeyType, s.Concatenation = nftables.MustConcatSetType(key...), true
		}
		return s
	}
	mapTo := func(data nftables.SetDatatype, s *nftables.Set) *nftables.Set {
		s.IsMap, s.DataType = true, data
		return s
	}
	dynamic := func(s *nftables.Set) *nftables.Set {
		s.Dynamic, s.Size = true, instances
		return s
	}
	forAWhile := func(s *nftables.Set) *nftables.Set {
		s.HasTimeout = true
		return s
	}
	return &sets{
		endpoints: set("endpoints", false, dev, addr),
		local:     set("local", false, addr),
		idents:    mapTo(mark, set("idents", false, addr)),
		sources:   set("sources", true, addr),
		allowed:   set("allowed", false, mark, mark),
		services:  mapTo(nftables.TypeVerdict, set("services", true, addr)),
		slots:     mapTo(addr, set("slots", false, addr, mark)),
		backends:  set("backends", true, addr),
		inward:    set("inward", true, dev, addr),
		outward:   set("outward", true, addr),
		outer:     set("outer", false, addr, addr),
		sample:    dynamic(set("sample", false, addr)),
		full:      dynamic(set("full", false, addr)),
		asking:    forAWhile(dynamic(set("asking", false, addr))),
		ports: mapTo(nftables.MustConcatSetType(addr, nftables.TypeInetService),
			set("ports", false, nftables.TypeInetProto, nftables.TypeInetService)),
		ports6: mapTo(nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetService),
			set("ports6", false, nftables.TypeInetProto, nftables.TypeInetService)),
	}
}

func (s *sets) all() []*nftables.Set {
	return []*nftables.Set{
		s.endpoints, s.local, s.idents, s.sources, s.allowed, s.services,
		s.slots, s.backends, s.inward, s.outward, s.outer, s.sample, s.full, s.asking, s.ports, s.ports6,
	}
}
