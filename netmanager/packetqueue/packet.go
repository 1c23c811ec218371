package packetqueue

import (
	"encoding/binary"
	"net/netip"

	"github.com/treeline-edge/treeline/netmanager/tunnel/offload"
)

// packet is the part of an IP header that the queue uses.
type packet struct {
	src, dst netip.Addr
	v6       bool
	proto    uint8 // IPv6: protocol after the extension headers
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

// parse reads a packet's header. ok is false if it is malformed or truncated.
func parse(b []byte) (p packet, ok bool) {
	if len(b) < 20 {
		return p, false
	}
	switch b[0] >> 4 {
	case 4:
		p.header = int(b[0]&15) * 4
		total := int(binary.BigEndian.Uint16(b[2:]))
		// The total length may be 0 before segmentation, because it does not fit the field.
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

// refusable reports whether an ICMP error may answer the packet (RFC 1122, 3.2.2; RFC 4443, 2.4). Later
// fragments, multicast packets and ICMP errors may not be answered. A truncated packet may be an error.
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

// maxError4 is the length of the longest ICMP error in bytes (RFC 1812, section 4.3.2.3).
const maxError4 = 576

func unreachable(p packet, b []byte, denied bool) []byte {
	switch {
	case p.v6 && denied:
		return offload.ICMP(b, 1, 1, 0, offload.MaxError6-48) // communication administratively prohibited
	case p.v6:
		return offload.ICMP(b, 1, 3, 0, offload.MaxError6-48) // address unreachable
	case denied:
		return offload.ICMP(b, 3, 13, 0, maxError4-28) // communication administratively prohibited
	}
	return offload.ICMP(b, 3, 1, 0, maxError4-28) // host unreachable
}
