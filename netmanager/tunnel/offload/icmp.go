package offload

import "encoding/binary"

// ICMP returns the ICMP error that answers a packet with a complete IP header. Its source is the packet's
// destination, because only an error from there takes the path of an answer. word is the second word of
// the ICMP header. The error quotes at most the first quote bytes.
func ICMP(packet []byte, kind, code byte, word uint32, quote int) []byte {
	quoted := packet[:min(len(packet), quote)]
	header, six := 20, packet[0]>>4 == 6
	if six {
		header = 40
	}
	p := make([]byte, header+8+len(quoted))
	body := p[header:]
	body[0], body[1] = kind, code
	binary.BigEndian.PutUint32(body[4:], word)
	copy(body[8:], quoted)
	pseudo := uint64(0)
	if six {
		p[0], p[6], p[7] = 0x60, protoICMPv6, 64
		binary.BigEndian.PutUint16(p[4:], uint16(len(body)))
		copy(p[8:], packet[24:40])
		copy(p[24:], packet[8:24])
		pseudo = sum(p[8:40], protoICMPv6+uint64(len(body)))
	} else {
		p[0], p[8], p[9] = 0x45, 64, protoICMP
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		copy(p[12:], packet[16:20])
		copy(p[16:], packet[12:16])
		binary.BigEndian.PutUint16(p[10:], ^fold(sum(p[:20], 0)))
	}
	binary.BigEndian.PutUint16(body[2:], ^fold(sum(body, pseudo)))
	return p
}

// MaxError6 is the length of the longest ICMPv6 error in bytes (RFC 4443, section 2.4).
const MaxError6 = 1280

// TooBig returns the packet that reports the MTU to the sender of packet: ICMP "fragmentation needed"
// (RFC 1191) or ICMPv6 "packet too big" (RFC 4443). It is nil if packet is malformed, a later fragment,
// or an ICMP error.
func TooBig(packet []byte, mtu int) []byte {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		hl := int(packet[0]&15) * 4
		if hl < 20 || len(packet) < hl+8 || packet[6]&0x1f != 0 || packet[7] != 0 {
			return nil
		}
		if t := packet[hl]; packet[9] == protoICMP && t != 0 && t != 8 {
			return nil
		}
		return ICMP(packet, 3, 4, uint32(uint16(mtu)), hl+8)
	case len(packet) >= 48 && packet[0]>>4 == 6:
		if packet[6] == protoICMPv6 && packet[40] < 128 {
			return nil
		}
		return ICMP(packet, 2, 0, uint32(mtu), MaxError6-48)
	}
	return nil
}
