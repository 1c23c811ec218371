package offload

import (
	"bytes"
	"encoding/binary"
)

// maxOpen bounds the flows that are joined at a time. With more flows in one batch, joining saves little.
const maxOpen = 8

// maxParts bounds the packets that are joined: the smallest UDP_MAX_SEGMENTS of kernels, and few enough
// for one writev.
const maxParts = 64

// Joiner joins consecutive packets of a flow (generic receive offload). It modifies their headers. The
// caller must not change packets until Flush. Packets of a flow keep their order.
type Joiner struct {
	TCP, UDP bool // whether the device accepts joined packets of the protocol

	items []item
	open  [maxOpen]int // items that may grow, one per flow, the latest first
	opens int
}

// item is a packet made of parts.
type item struct {
	vnet    [VnetLen]byte
	parts   [][]byte // the first is vnet, the second has the header
	l       layout
	partial bool
	size    int    // of each payload except the last
	total   int    // of the whole packet
	seq     uint32 // TCP: next sequence number
	more    byte   // TCP: flags of the last part
}

// Add adds a packet. It returns false for a partial packet that is neither TCP nor UDP, because the
// kernel could not complete its checksum.
func (j *Joiner) Add(p []byte, partial bool) bool {
	l, ok := parse(p)
	if !ok {
		if !partial {
			j.add(p, l, false)
		}
		return !partial
	}
	i := j.find(p, l)
	payload := len(p) - l.payload
	if !j.joins(l) || payload == 0 || !l.plain(p) || !partial && !l.valid(p) {
		j.shut(i)
		j.add(p, l, partial)
		return true
	}
	if i >= 0 && j.items[j.open[i]].takes(p, l) {
		it := &j.items[j.open[i]]
		it.parts = append(it.parts, p[l.payload:])
		it.total += payload
		if l.proto == protoTCP {
			it.seq += uint32(payload)
			it.more |= p[l.l4+13] & (tcpFIN | tcpPSH)
		}
		if payload < it.size || it.more != 0 || len(it.parts) > maxParts {
			j.shut(i)
		}
		return true
	}
	j.shut(i)
	it := j.add(p, l, partial)
	it.size = payload
	if l.proto == protoTCP {
		it.seq = binary.BigEndian.Uint32(p[l.l4+4:]) + uint32(payload)
		if p[l.l4+13]&(tcpFIN|tcpPSH) != 0 {
			return true
		}
	}
	if j.opens == maxOpen {
		j.opens--
	}
	copy(j.open[1:], j.open[:j.opens])
	j.open[0] = len(j.items) - 1
	j.opens++
	return true
}

func (j *Joiner) joins(l layout) bool {
	return l.proto == protoTCP && j.TCP || l.proto == protoUDP && j.UDP
}

// plain reports whether the flags of a packet allow joining.
func (l layout) plain(p []byte) bool {
	return l.proto != protoTCP || p[l.l4+13]&^(tcpFIN|tcpPSH|tcpCWR|0x10|0x40) == 0 // ACK, ECE
}

func (j *Joiner) add(p []byte, l layout, partial bool) *item {
	if len(j.items) < cap(j.items) {
		j.items = j.items[:len(j.items)+1] // reuses the parts of an earlier item
	} else {
		j.items = append(j.items, item{})
	}
	it := &j.items[len(j.items)-1]
	*it = item{parts: append(it.parts[:0], nil, p), l: l, partial: partial, total: len(p)}
	return it
}

// find returns the index in open of the packet's flow, or -1.
func (j *Joiner) find(p []byte, l layout) int {
	for i, k := range j.open[:j.opens] {
		it := &j.items[k]
		h := it.parts[1]
		if it.l.v6 == l.v6 && it.l.proto == l.proto && it.l.l4 == l.l4 &&
			binary.NativeEndian.Uint32(h[l.l4:]) == binary.NativeEndian.Uint32(p[l.l4:]) &&
			bytes.Equal(l.addrs(h), l.addrs(p)) {
			return i
		}
	}
	return -1
}

func (l layout) addrs(p []byte) []byte {
	if l.v6 {
		return p[8:40]
	}
	return p[12:20]
}

// shut removes the item at i from open.
func (j *Joiner) shut(i int) {
	if i >= 0 {
		j.opens--
		copy(j.open[i:], j.open[i+1:j.opens+1])
	}
}

// takes reports whether p continues the item, so that splitting the joined packet would yield p again.
func (it *item) takes(p []byte, l layout) bool {
	h := it.parts[1]
	if l.payload != it.l.payload || len(p)-l.payload > it.size || it.total+len(p)-l.payload > MaxPacket {
		return false
	}
	if l.v6 {
		if !bytes.Equal(p[:4], h[:4]) || p[7] != h[7] {
			return false
		}
	} else {
		// With "don't fragment" set, the identification has no meaning (RFC 6864).
		id := binary.BigEndian.Uint16(p[4:]) - binary.BigEndian.Uint16(h[4:])
		if p[1] != h[1] || p[6] != h[6] || p[8] != h[8] || !bytes.Equal(p[20:l.l4], h[20:l.l4]) ||
			p[6]&0x40 == 0 && int(id) != len(it.parts)-1 {
			return false
		}
	}
	if l.proto == protoUDP {
		return true
	}
	t, u := p[l.l4:l.payload], h[l.l4:l.payload]
	return binary.BigEndian.Uint32(t[4:]) == it.seq &&
		bytes.Equal(t[8:13], u[8:13]) && // acknowledgement, length of the header
		(t[13]^u[13])&^(tcpFIN|tcpPSH|tcpCWR) == 0 && t[13]&tcpCWR == 0 &&
		bytes.Equal(t[14:16], u[14:16]) && bytes.Equal(t[18:], u[18:]) // window, options
}

// Flush writes and removes all packets, each in parts; the first part is the vnet header. It continues
// after an error, and returns the first error.
func (j *Joiner) Flush(write func(parts [][]byte) error) error {
	var first error
	for i := range j.items {
		it := &j.items[i]
		it.finish()
		it.parts[0] = it.vnet[:]
		if err := write(it.parts); err != nil && first == nil {
			first = err
		}
	}
	j.items, j.opens = j.items[:0], 0
	return first
}

func (it *item) finish() {
	joined := len(it.parts) > 2
	if !joined && !it.partial {
		vnet{}.put(it.vnet[:])
		return
	}
	l, h := it.l, it.parts[1]
	v := vnet{flags: needsCsum, csumStart: uint16(l.l4), csumOff: uint16(l.csum())}
	if joined {
		v.size, v.hdrLen = uint16(it.size), uint16(l.payload)
		switch {
		case l.proto == protoUDP:
			v.gso = gsoUDP
		case l.v6:
			v.gso = gsoTCP6
		default:
			v.gso = gsoTCP4
		}
		if l.proto == protoTCP {
			if h[l.l4+13]&tcpCWR != 0 {
				v.gso |= gsoECN
			}
			h[l.l4+13] |= it.more
		}
		l.setLen(h, it.total)
	}
	l.setPartial(h, it.total)
	v.put(it.vnet[:])
}
