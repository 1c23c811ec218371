package nft

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

type sets struct {
	endpoints    *set // device . address: sources that are allowed
	local        *set // addresses of this node's instances
	idents       *set // address → ident, of instances and services
	sources      *set // addresses of remote instances; counts arriving flows
	allowed      *set // ident . ident
	services     *set // semantic address → its chain; counts flows
	slots        *set // semantic address . turn → backend
	backends     *set // counts flows by backend
	fromPeers    *set // device . subnet of peers' packets; counts bytes
	toPeers      *set // subnets of peers on kernel paths; counts bytes
	vxlanSources *set // VXLAN peer . subnet
	sampled      *set // local instances; samples their flows (share.go)
	atLimit      *set // instances at their share
	limitRate    *set // rate of further flows of the instances in full
	queueRate    *set // rate of queued packets by instance
	ports        *set // protocol . port → instance . port
	ports6       *set // the same → IPv6 address of the instance . port
	all          []*set
}

func newSets(t *nftables.Table) *sets {
	addr, mark, dev := nftables.TypeIPAddr, nftables.TypeMark, nftables.TypeIFName
	var all []*set
	of := func(name string, counter bool, key ...nftables.SetDatatype) *set {
		s := &set{Set: nftables.Set{Table: t, Name: name, KeyType: key[0], Counter: counter}, has: map[data]value{}}
		if len(key) > 1 {
			s.KeyType, s.Concatenation = nftables.MustConcatSetType(key...), true
		}
		all = append(all, s)
		return s
	}
	mapTo := func(to nftables.SetDatatype, s *set) *set {
		s.IsMap, s.DataType = true, to
		return s
	}
	dynamic := func(expires bool, s *set) *set {
		s.Dynamic, s.HasTimeout, s.Size = true, expires, instances
		return s
	}
	s := &sets{
		endpoints:    of("endpoints", false, dev, addr),
		local:        of("local", false, addr),
		idents:       mapTo(mark, of("idents", false, addr)),
		sources:      of("sources", true, addr),
		allowed:      of("allowed", false, mark, mark),
		services:     mapTo(nftables.TypeVerdict, of("services", true, addr)),
		slots:        mapTo(addr, of("slots", false, addr, mark)),
		backends:     of("backends", true, addr),
		fromPeers:    of("from-peers", true, dev, addr),
		toPeers:      of("to-peers", true, addr),
		vxlanSources: of("vxlan-sources", false, addr, addr),
		sampled:      dynamic(false, of("sampled-flows", false, addr)),
		atLimit:      dynamic(false, of("at-flow-limit", false, addr)),
		limitRate:    dynamic(true, of("flow-limit-rate", false, addr)),
		queueRate:    dynamic(true, of("queue-rate", false, addr)),
		ports: mapTo(nftables.MustConcatSetType(addr, nftables.TypeInetService),
			of("ports", false, nftables.TypeInetProto, nftables.TypeInetService)),
		ports6: mapTo(nftables.MustConcatSetType(nftables.TypeIP6Addr, nftables.TypeInetService),
			of("ports6", false, nftables.TypeInetProto, nftables.TypeInetService)),
	}
	s.all = all
	return s
}

// set is a set or map of the table, with its elements.
type set struct {
	nftables.Set
	has map[data]value
}

// capacity returns the number of elements that the kernel creates a set for. Such a set is a fixed
// hash table, which is faster than a growing one. If it becomes too small the table is
// replaced.
func (s *set) capacity() uint32 {
	if s.Size > 0 {
		return s.Size
	}
	const least = 1 << 10
	return max(least, 2*uint32(len(s.has)))
}

// read returns the counters of the elements in the kernel. Elements without a counter are left out.
func (s *set) read(conn *nftables.Conn) (map[data]expr.Counter, error) {
	es, err := conn.GetSetElements(&s.Set)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", s.Name, err)
	}
	out := map[data]expr.Counter{}
	for _, e := range es {
		var key data
		if copy(key[:], e.Key); e.Counter != nil {
			out[key] = *e.Counter
		}
	}
	return out, nil
}

// data is a key or a value: as many bytes as the set's types have, in network order or, for
// marks, in host order.
type data [20]byte

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

// concat concatenates the first n bytes of d with e, in whole registers.
func (d data) concat(n int, e data) data {
	copy(d[n:], e[:])
	return d
}
