package packetqueue

import (
	"encoding/binary"
	"net/netip"
)

// packet is the part of an IP header that the queue uses.
type packet struct {
	src, dst netip.Addr
	v6       bool
	proto    uint8 // IPv6: of the header after the extensions
	later    bool  // a fragment that is not the first
	cut      bool  // IPv6: the extension headers are longer than the packet
	header   int   // length in bytes, including extensions
}

const (
	protoICMP      = 1
	protoICMPv6    = 58
	fragment6      = 44
	authentication = 51
)

// parse reads a packet's header. ok is false if it is malformed or cut off.
func parse(b []byte) (p packet, ok bool) {
	if len(b) < 20 {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		p.header = int(b[0]&15) * 4
		total := int(binary.BigEndian.Uint16(b[2:]))
		// The total length may be 0 before segmentation: the packet is too long for the field.
		if p.header < 20 || p.header > len(b) || total != 0 && (total < p.header || total > len(b)) {
			return p, false
		}
		p.src, p.dst = netip.AddrFrom4([4]byte(b[12:])), netip.AddrFrom4([4]byte(b[16:]))
		p.proto, p.later = b[9], binary.BigEndian.Uint16(b[6:])&0x1fff != 0
		return p, true
	case 6:
		if len(b) < 40 {
			return p, false
		}
		p.header, p.v6 = 40, true
		if int(binary.BigEndian.Uint16(b[4:]))+40 > len(b) {
			return p, false
		}
		p.src, p.dst = netip.AddrFrom16([16]byte(b[8:])), netip.AddrFrom16([16]byte(b[24:]))
		p.proto = b[6]
		p.extend(b)
		return p, true
	}
	return p, false
}

// extend skips the extension headers (RFC 8200, 4, and RFC 6564).
func (p *packet) extend(b []byte) {
	for !p.later {
		length := 8
		rest := b[p.header:]
		switch p.proto {
		case 0, 43, 60, 135, 139, 140: // hop-by-hop options, routing, destination options, mobility, host identity, shim6
			if len(rest) > 1 {
				length = 8 * (int(rest[1]) + 1)
			}
		case authentication:
			if len(rest) > 1 {
				length = 4 * (int(rest[1]) + 2)
			}
		case fragment6:
			p.later = len(rest) >= length && binary.BigEndian.Uint16(rest[2:])&^7 != 0
		default:
			return
		}
		if p.cut = len(rest) < length; p.cut {
			return
		}
		p.proto, p.header = rest[0], p.header+length
	}
}

// refusable reports whether an ICMP error may answer the packet (RFC 1122, 3.2.2; RFC 4443,
// 2.4): not a later fragment, a packet to or from a multicast address, or an ICMP error. A
// packet that cannot be parsed to its end may be an error.
func (p packet) refusable(b []byte) bool {
	if p.later || p.cut || p.dst.IsMulticast() || p.src.IsMulticast() || p.src.IsUnspecified() || p.src.IsLoopback() {
		return false
	}
	if len(b) <= p.header {
		return p.proto != protoICMP && p.proto != protoICMPv6
	}
	switch t := b[p.header]; {
	case p.v6 && p.proto == protoICMPv6:
		return t >= 128
	case !p.v6 && p.proto == protoICMP:
		return t == 0 || t == 8 || t >= 13 && t <= 18 // not an error: echo, and the obsolete queries
	}
	return true
}

// The largest ICMP errors in bytes, including the quoted packet.
const (
	error4 = 576  // RFC 1812, 4.3.2.3
	error6 = 1280 // RFC 4443, 2.4
)

// unreachable returns the ICMP error that answers a packet. Its source is the packet's
// destination, because only an error from there takes the way of an answer.
func unreachable(p packet, b []byte, denied bool) []byte {
	if p.v6 {
		return unreachable6(p, b, denied)
	}
	quoted := b[:min(len(b), error4-28)]
	out := make([]byte, 28+len(quoted))
	out[0], out[8], out[9] = 0x45, 64, protoICMP
	binary.BigEndian.PutUint16(out[2:], uint16(len(out)))
	copy(out[12:], p.dst.AsSlice())
	copy(out[16:], p.src.AsSlice())
	binary.BigEndian.PutUint16(out[10:], checksum(out[:20], 0))
	out[20], out[21] = 3, 1 // host unreachable
	if denied {
		out[21] = 13 // communication administratively prohibited
	}
	copy(out[28:], quoted)
	binary.BigEndian.PutUint16(out[22:], checksum(out[20:], 0))
	return out
}

func unreachable6(p packet, b []byte, denied bool) []byte {
	quoted := b[:min(len(b), error6-48)]
	out := make([]byte, 48+len(quoted))
	out[0], out[6], out[7] = 0x60, protoICMPv6, 64
	binary.BigEndian.PutUint16(out[4:], uint16(len(out)-40))
	copy(out[8:], p.dst.AsSlice())
	copy(out[24:], p.src.AsSlice())
	out[40], out[41] = 1, 3 // address unreachable
	if denied {
		out[41] = 1 // communication administratively prohibited
	}
	copy(out[48:], quoted)
	// The pseudo-header (RFC 8200, 8.1): addresses, length, protocol.
	sum := sum16(out[8:40], uint32(len(out)-40)+protoICMPv6)
	binary.BigEndian.PutUint16(out[42:], checksum(out[40:], sum))
	return out
}

func sum16(b []byte, sum uint32) uint32 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	return sum
}

// checksum returns the Internet checksum (RFC 1071) of b, added to sum.
func checksum(b []byte, sum uint32) uint16 {
	sum = sum16(b, sum)
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	return ^uint16(sum)
}
