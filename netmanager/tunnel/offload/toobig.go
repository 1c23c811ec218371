package offload

import "encoding/binary"

// TooBig returns a frame that tells the sender of a packet that the path's MTU is mtu: ICMP
// "fragmentation needed" (RFC 1191) or ICMPv6 "packet too big" (RFC 4443), from the packet's
// destination. It is nil if packet is malformed, a later fragment, or an ICMP error.
func TooBig(packet []byte, mtu int) []byte {
	switch {
	case len(packet) >= 20 && packet[0]>>4 == 4:
		hl := int(packet[0]&15) * 4
		if hl < 20 || len(packet) < hl+8 || packet[6]&0x1f != 0 || packet[7] != 0 {
			return nil
		}
		if t := packet[hl]; packet[9] == 1 && t != 0 && t != 8 {
			return nil
		}
		quote := packet[:hl+8]
		f := make([]byte, VnetLen+20+8+len(quote))
		p := f[VnetLen:]
		p[0], p[8], p[9] = 0x45, 64, 1
		binary.BigEndian.PutUint16(p[2:], uint16(len(p)))
		copy(p[12:], packet[16:20])
		copy(p[16:], packet[12:16])
		binary.BigEndian.PutUint16(p[10:], ^fold(sum(p[:20], 0)))
		p[20], p[21] = 3, 4
		binary.BigEndian.PutUint16(p[26:], uint16(mtu))
		copy(p[28:], quote)
		binary.BigEndian.PutUint16(p[22:], ^fold(sum(p[20:], 0)))
		return f
	case len(packet) >= 48 && packet[0]>>4 == 6:
		if packet[6] == 58 && packet[40] < 128 {
			return nil
		}
		quote := packet[:min(len(packet), 1280-48)]
		f := make([]byte, VnetLen+48+len(quote))
		p := f[VnetLen:]
		p[0], p[6], p[7] = 0x60, 58, 64
		binary.BigEndian.PutUint16(p[4:], uint16(8+len(quote)))
		copy(p[8:], packet[24:40])
		copy(p[24:], packet[8:24])
		p[40] = 2
		binary.BigEndian.PutUint32(p[44:], uint32(mtu))
		copy(p[48:], quote)
		binary.BigEndian.PutUint16(p[42:], ^fold(sum(p[40:], sum(p[8:40], uint64(58+8+len(quote))))))
		return f
	}
	return nil
}
