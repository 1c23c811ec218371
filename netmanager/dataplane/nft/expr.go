package nft

import (
	"encoding/binary"
	"net"
	"net/netip"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/treeline-edge/treeline/internal/wire"
)

// r returns a 32-bit register. Concatenations use adjacent registers. By convention r(12) and
// up are scratch registers.
func r(n uint32) uint32 { return unix.NFT_REG32_00 + n }

type exprs = []expr.Any

func rule(parts ...exprs) exprs {
	var all exprs
	for _, p := range parts {
		all = append(all, p...)
	}
	return all
}

func verdict(kind expr.VerdictKind, chain string) exprs {
	return exprs{&expr.Verdict{Kind: kind, Chain: chain}}
}

func accept() exprs           { return verdict(expr.VerdictAccept, "") }
func drop() exprs             { return verdict(expr.VerdictDrop, "") }
func goTo(chain string) exprs { return verdict(expr.VerdictGoto, chain) }
func jump(chain string) exprs { return verdict(expr.VerdictJump, chain) }
func count(name string) exprs { return exprs{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: name}} }
func native(v uint32) []byte  { return binary.NativeEndian.AppendUint32(nil, v) }
func big16(v uint16) []byte   { return binary.BigEndian.AppendUint16(nil, v) }

func meta(k expr.MetaKey, reg uint32) exprs { return exprs{&expr.Meta{Key: k, Register: reg}} }

func payload(base expr.PayloadBase, offset, n, reg uint32) exprs {
	return exprs{&expr.Payload{DestRegister: reg, Base: base, Offset: offset, Len: n}}
}

func network(offset, n, reg uint32) exprs {
	return payload(expr.PayloadBaseNetworkHeader, offset, n, reg)
}

func transport(offset, n, reg uint32) exprs {
	return payload(expr.PayloadBaseTransportHeader, offset, n, reg)
}

func compare(op expr.CmpOp, reg uint32, data []byte) exprs {
	return exprs{&expr.Cmp{Op: op, Register: reg, Data: data}}
}

func is(reg uint32, data []byte) exprs  { return compare(expr.CmpOpEq, reg, data) }
func not(reg uint32, data []byte) exprs { return compare(expr.CmpOpNeq, reg, data) }

func mask(reg uint32, m []byte) exprs {
	return exprs{&expr.Bitwise{SourceRegister: reg, DestRegister: reg, Len: uint32(len(m)), Mask: m, Xor: make([]byte, len(m))}}
}

// bits returns the mask of an n-byte prefix.
func bits(n, length int) []byte { return net.CIDRMask(length, 8*n) }

func immediate(reg uint32, data []byte) exprs {
	return exprs{&expr.Immediate{Register: reg, Data: data}}
}

func in(s *set, reg uint32) exprs {
	return exprs{&expr.Lookup{SourceRegister: reg, SetName: s.Name}}
}

// find loads the value of a key in a map. It does not match if the map lacks the key.
func find(s *set, reg, to uint32) exprs {
	return exprs{&expr.Lookup{SourceRegister: reg, DestRegister: to, IsDestRegSet: true, SetName: s.Name}}
}

func name16(s string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, s)
	return b
}

func from(device string) exprs {
	return rule(meta(expr.MetaKeyIIFNAME, r(12)), is(r(12), name16(device)))
}

func to(device string) exprs {
	return rule(meta(expr.MetaKeyOIFNAME, r(12)), is(r(12), name16(device)))
}

// fromOurs and toOurs match devices whose name begins with the prefix.
func fromOurs(prefix string) exprs {
	return rule(meta(expr.MetaKeyIIFNAME, r(12)), is(r(12), []byte(prefix)))
}

func toOurs(prefix string) exprs {
	return rule(meta(expr.MetaKeyOIFNAME, r(12)), is(r(12), []byte(prefix)))
}

func protocol(p byte) exprs { return rule(meta(expr.MetaKeyL4PROTO, r(12)), is(r(12), []byte{p})) }

func state(s uint32) exprs {
	return rule(exprs{&expr.Ct{Key: expr.CtKeySTATE, Register: r(12)}}, mask(r(12), native(s)), not(r(12), native(0)))
}

// translated matches flows whose destination was translated.
func translated() exprs { return status(1 << 5) } // IPS_DST_NAT

// assured matches packets of flows with traffic in both directions; for TCP after the
// handshake.
func assured() exprs { return status(1 << 2) } // IPS_ASSURED

func status(bit uint32) exprs {
	return rule(exprs{&expr.Ct{Key: expr.CtKeySTATUS, Register: r(12)}}, mask(r(12), native(bit)), not(r(12), native(0)))
}

// Flags of a TCP header.
const (
	fin, syn, rst, ack = 1, 2, 4, 16
)

// midstream matches TCP segments that do not begin a connection.
func midstream() exprs {
	return rule(protocol(unix.IPPROTO_TCP), transport(13, 1, r(12)), mask(r(12), []byte{fin | syn | rst | ack}), not(r(12), []byte{syn}))
}

// family has the differences between IPv4 and IPv6. Keys are IPv4 addresses in both: the low 32
// bits of an IPv6 address, after the rest was compared.
type family struct {
	proto               byte
	suffix              string // of chain names
	source, destination field
	ranges              wire.NetRanges
}

type field struct{ at, low uint32 } // offsets in the network header of the address and of its low 32 bits

func families(ranges wire.NetRanges) [2]family {
	return [2]family{
		{unix.NFPROTO_IPV4, "", field{12, 12}, field{16, 16}, ranges},
		{unix.NFPROTO_IPV6, "6", field{8, 20}, field{24, 36}, ranges},
	}
}

func (f family) six() bool { return f.proto == unix.NFPROTO_IPV6 }

func (f family) only() exprs {
	return rule(meta(expr.MetaKeyNFPROTO, r(12)), is(r(12), []byte{f.proto}))
}

// high returns the bytes before the IPv4 address in the addresses of an IPv6 range.
func high(six netip.Prefix) []byte {
	b := six.Addr().As16()
	return b[:12]
}

// within matches addresses of the range four or, in IPv6, of the range six.
func (f family) within(at field, four, six netip.Prefix) exprs {
	if f.six() {
		return rule(network(at.at, 12, r(12)), is(r(12), high(six)))
	}
	return inPrefix(at, four)
}

func negated(x exprs) exprs {
	x[len(x)-1].(*expr.Cmp).Op = expr.CmpOpNeq
	return x
}

// inPrefix matches addresses of p, which is of the field's family.
func inPrefix(at field, p netip.Prefix) exprs {
	n := p.Addr().BitLen() / 8
	return rule(network(at.at, uint32(n), r(12)), mask(r(12), bits(n, p.Bits())), is(r(12), p.Masked().Addr().AsSlice()))
}

func (f family) instance(at field) exprs {
	return f.within(at, f.ranges.Instances, f.ranges.Instances6)
}

func (f family) service(at field) exprs {
	return f.within(at, f.ranges.Services, f.ranges.Services6)
}

// key loads the IPv4 address or the low 32 bits of an instance's IPv6 address. It does not match other
// IPv6 addresses.
func (f family) key(at field, reg uint32) exprs {
	if f.six() {
		return rule(f.instance(at), network(at.low, 4, reg))
	}
	return network(at.low, 4, reg)
}
