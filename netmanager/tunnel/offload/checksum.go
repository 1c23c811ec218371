package offload

import (
	"encoding/binary"
	"math/bits"
)

// sum adds b to an unfolded Internet checksum (RFC 1071). It adds eight bytes at a time with the carry,
// because the sum of larger words folds to that of smaller ones.
func sum(b []byte, s uint64) uint64 {
	var c uint64
	for len(b) >= 32 {
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b), 0)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[8:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[16:]), c)
		s, c = bits.Add64(s, binary.BigEndian.Uint64(b[24:]), c)
		s, c = bits.Add64(s, 0, c)
		s += c
		b = b[32:]
	}
	for len(b) >= 4 {
		s, c = bits.Add64(s, uint64(binary.BigEndian.Uint32(b)), 0)
		s += c
		b = b[4:]
	}
	if len(b) >= 2 {
		s, c = bits.Add64(s, uint64(binary.BigEndian.Uint16(b)), 0)
		s += c
		b = b[2:]
	}
	if len(b) == 1 {
		s, c = bits.Add64(s, uint64(b[0])<<8, 0)
		s += c
	}
	return s
}

// fold folds a sum to 16 bits. It does not complement it.
func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>16&0xffff + s>>32 + s&0xffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s)
}

// valid reports whether the transport checksum of a packet is correct. UDP over IPv4 without a checksum
// is not valid.
func (l layout) valid(p []byte) bool {
	if l.proto == protoUDP && p[l.l4+csumUDP] == 0 && p[l.l4+csumUDP+1] == 0 {
		return false
	}
	return fold(sum(p[l.l4:], l.pseudo(p, len(p)))) == 0xffff
}

// complete computes the checksum of p from start, and writes it off bytes after start, over the sum of
// the pseudo header.
func complete(p []byte, start, off int) {
	s := ^fold(sum(p[start:], 0))
	if s == 0 { // in UDP, 0 means no checksum; in other protocols 0 and 0xffff are equal
		s = 0xffff
	}
	binary.BigEndian.PutUint16(p[start+off:], s)
}

// Complete completes the partial transport checksum of a packet, for devices that cannot. It reports
// whether the packet is TCP or UDP.
func Complete(p []byte) bool {
	l, ok := parse(p)
	if ok {
		l.setPartial(p, len(p))
		complete(p, l.l4, l.csum())
	}
	return ok
}
