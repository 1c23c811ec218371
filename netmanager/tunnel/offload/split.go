package offload

import "encoding/binary"

// Segment is a packet to send. Partial means that its transport checksum is partial; such a packet is TCP
// or UDP and not a fragment.
type Segment struct {
	Packet  []byte
	Partial bool
}

// Splitter splits frames, one after the other. The zero value is ready to use.
type Splitter struct {
	p       []byte // the packet; bytes before at may be overwritten
	l       layout
	at      int // offset of the next payload
	size    int // of each payload except the last
	index   int
	id      uint16 // IPv4: of the first segment
	seq     uint32 // TCP: of the first segment
	flags   byte   // TCP: of the whole packet
	partial bool
	whole   bool // the packet is not split
	header  [60 + 60]byte
}

// Start starts a frame. The segments share its memory. The caller must not change it until the last
// segment has been used. After ErrMalformed there are no segments.
func (s *Splitter) Start(frame []byte) error {
	s.p, s.whole = nil, false
	if len(frame) < VnetLen+20 {
		return ErrMalformed
	}
	v, p := parseVnet(frame), frame[VnetLen:]
	l, ok := parse(p)
	if v.gso == gsoNone {
		s.p, s.whole, s.partial = p, true, false
		if v.flags&needsCsum == 0 {
			return nil
		}
		start, off := int(v.csumStart), int(v.csumOff)
		if start+off+2 > len(p) {
			s.p = nil
			return ErrMalformed
		}
		if s.partial = ok && start == l.l4 && off == l.csum(); !s.partial {
			complete(p, start, off) // the other end could not locate this checksum
		}
		return nil
	}
	switch v.gso &^ gsoECN {
	case gsoTCP4:
		ok = ok && !l.v6 && l.proto == protoTCP
	case gsoTCP6:
		ok = ok && l.v6 && l.proto == protoTCP
	case gsoUDP:
		ok = ok && l.proto == protoUDP
	default:
		ok = false
	}
	if !ok || v.size == 0 || l.payload == len(p) {
		return ErrMalformed
	}
	s.p, s.l, s.at, s.size, s.index = p, l, l.payload, int(v.size), 0
	copy(s.header[:], p[:l.payload])
	s.id = binary.BigEndian.Uint16(p[4:])
	if l.proto == protoTCP {
		s.seq, s.flags = binary.BigEndian.Uint32(p[l.l4+4:]), p[l.l4+13]
	}
	return nil
}

const (
	tcpFIN = 0x01
	tcpPSH = 0x08
	tcpCWR = 0x80
)

// Size returns the length of the next segment, and how many segments are left.
func (s *Splitter) Size() (each, left int) {
	switch {
	case s.p == nil:
		return 0, 0
	case s.whole:
		return len(s.p), 1
	}
	rest := len(s.p) - s.at
	return s.l.payload + min(s.size, rest), (rest + s.size - 1) / s.size
}

// Next sets seg to the next segment, and reports whether there was one. The segment is valid until
// the next call, which writes the next header over the end of its payload.
func (s *Splitter) Next(seg *Segment) bool {
	if s.p == nil {
		return false
	}
	if s.whole {
		*seg = Segment{s.p, s.partial}
		s.p = nil
		return true
	}
	end := min(s.at+s.size, len(s.p))
	last := end == len(s.p)
	h := s.p[s.at-s.l.payload : s.at]
	n := len(h) + end - s.at
	copy(h, s.header[:len(h)])
	if !s.l.v6 {
		binary.BigEndian.PutUint16(h[4:], s.id+uint16(s.index))
	}
	if s.l.proto == protoTCP {
		binary.BigEndian.PutUint32(h[s.l.l4+4:], s.seq+uint32(s.index*s.size))
		flags := s.flags
		if !last {
			flags &^= tcpFIN | tcpPSH
		}
		if s.index > 0 {
			flags &^= tcpCWR
		}
		h[s.l.l4+13] = flags
	}
	s.l.setLen(h, n)
	s.l.setPartial(h, n)
	*seg = Segment{s.p[s.at-s.l.payload : end], true}
	s.at, s.index = end, s.index+1
	if last {
		s.p = nil
	}
	return true
}
