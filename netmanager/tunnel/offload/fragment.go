package offload

import "encoding/binary"

// LeastIPv6 is the length of IPv6 packets that every link must carry (RFC 8200, section 5). Senders do
// not use a smaller MTU.
const LeastIPv6 = 1280

// The fragment header (RFC 8200, section 4.5).
const (
	fragmentLen    = 8
	protoFragment  = 44
	protoHopByHop  = 0
	protoRouting   = 43
	moreFragments  = 1
	fragmentOffset = 0xfff8
)

// Fragment splits an IPv6 packet into fragments of at most mtu bytes, as a link with an MTU below
// LeastIPv6 must do. The receiving kernel reassembles them. It returns false, without a call of yield, if
// the packet cannot be fragmented. A fragment is valid until yield returns.
func Fragment(seg Segment, mtu int, id uint32, yield func(fragment []byte)) bool {
	p := seg.Packet
	if len(p) < 40 || p[0]>>4 != 6 || p[6] == protoHopByHop || p[6] == protoRouting {
		return false
	}
	if seg.Partial { // a partial checksum cannot be completed in fragments
		l, ok := parse(p)
		if !ok {
			return false
		}
		complete(p, l.l4, l.csum())
	}
	next, rest, offset, more := p[6], p[40:], uint16(0), byte(0)
	if next == protoFragment {
		if len(rest) < fragmentLen {
			return false
		}
		next, offset, more = rest[0], binary.BigEndian.Uint16(rest[2:])&fragmentOffset, rest[3]&moreFragments
		id, rest = binary.BigEndian.Uint32(rest[4:]), rest[fragmentLen:]
	}
	each := (mtu - 40 - fragmentLen) &^ 7
	if each < 8 || int(offset)+len(rest) > MaxPacket {
		return false
	}
	f := make([]byte, 40+fragmentLen+min(each, len(rest)))
	copy(f, p[:40])
	f[6] = protoFragment
	for len(rest) > 0 {
		n, last := min(each, len(rest)), byte(moreFragments)
		if n == len(rest) {
			last = more
		}
		h := f[40:]
		h[0], h[1] = next, 0
		binary.BigEndian.PutUint16(h[2:], offset|uint16(last))
		binary.BigEndian.PutUint32(h[4:], id)
		copy(h[fragmentLen:], rest[:n])
		binary.BigEndian.PutUint16(f[4:], uint16(fragmentLen+n))
		yield(f[:40+fragmentLen+n])
		rest, offset = rest[n:], offset+uint16(n)
	}
	return true
}
