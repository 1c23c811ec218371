// Package offload does segmentation and receive offload in user space: it splits the large packets of a
// TUN device with vnet headers (Splitter), and joins received packets into such packets (Joiner). In
// steady state it allocates nothing, and it copies no payload.
//
// A transport checksum may be partial: it covers only the pseudo header, as in packets that the kernel
// leaves to a network card. The tunnel authenticates packets, which is stronger than a checksum. The
// receiving kernel completes the checksum if it forwards the packet to another network.
//
//	for s.Start(frame); s.Next(&seg); { send(seg.Packet, seg.Partial) }
//	for each received packet { j.Add(packet, partial) }
//	j.Flush(write)
package offload

import (
	"encoding/binary"
	"errors"
)

// VnetLen is the length of the vnet header (struct virtio_net_hdr, linux/virtio_net.h) before
// each packet, in bytes. Its integers have the host's byte order.
const VnetLen = 10

// Flags and types of a vnet header.
const (
	needsCsum = 1

	gsoNone = 0
	gsoTCP4 = 1
	gsoTCP6 = 4
	gsoUDP  = 5
	gsoECN  = 0x80
	csumTCP = 16 // offset of the checksum in a TCP header
	csumUDP = 6

	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58
)

// MaxPacket is the longest packet after a vnet header, in bytes.
const MaxPacket = 65535

// ErrMalformed means a frame that the kernel would not produce.
var ErrMalformed = errors.New("malformed packet")

type vnet struct {
	flags, gso         byte
	hdrLen, size       uint16
	csumStart, csumOff uint16
}

func parseVnet(b []byte) vnet {
	o := binary.NativeEndian
	return vnet{b[0], b[1], o.Uint16(b[2:]), o.Uint16(b[4:]), o.Uint16(b[6:]), o.Uint16(b[8:])}
}

func (v vnet) put(b []byte) {
	o := binary.NativeEndian
	b[0], b[1] = v.flags, v.gso
	o.PutUint16(b[2:], v.hdrLen)
	o.PutUint16(b[4:], v.size)
	o.PutUint16(b[6:], v.csumStart)
	o.PutUint16(b[8:], v.csumOff)
}

// layout has the offsets in a TCP or UDP packet that is not a fragment.
type layout struct {
	v6      bool
	proto   byte
	l4      int // offset of the transport header
	payload int
}

// parse returns the layout of a packet. It reports false unless the packet is TCP or UDP directly
// after an IP header, is not a fragment, and has consistent lengths.
func parse(p []byte) (layout, bool) {
	if len(p) < 20 {
		return layout{}, false
	}
	var l layout
	switch p[0] >> 4 {
	case 4:
		l.l4, l.proto = int(p[0]&15)*4, p[9]
		if l.l4 < 20 || int(binary.BigEndian.Uint16(p[2:])) != len(p) || binary.BigEndian.Uint16(p[6:])&0x3fff != 0 {
			return l, false
		}
	case 6:
		if len(p) < 40 || int(binary.BigEndian.Uint16(p[4:]))+40 != len(p) {
			return l, false
		}
		l.v6, l.l4, l.proto = true, 40, p[6]
	default:
		return l, false
	}
	switch l.proto {
	case protoTCP:
		if len(p) < l.l4+20 {
			return l, false
		}
		l.payload = l.l4 + int(p[l.l4+12]>>4)*4
		return l, l.payload >= l.l4+20 && l.payload <= len(p)
	case protoUDP:
		l.payload = l.l4 + 8
		return l, len(p) >= l.payload && int(binary.BigEndian.Uint16(p[l.l4+4:])) == len(p)-l.l4
	}
	return l, false
}

// csum returns the offset of the checksum within the transport header.
func (l layout) csum() int {
	if l.proto == protoTCP {
		return csumTCP
	}
	return csumUDP
}

// setLen writes the lengths and the IP header's checksum of a packet of n bytes with header h.
func (l layout) setLen(h []byte, n int) {
	if l.v6 {
		binary.BigEndian.PutUint16(h[4:], uint16(n-40))
	} else {
		binary.BigEndian.PutUint16(h[2:], uint16(n))
		h[10], h[11] = 0, 0
		binary.BigEndian.PutUint16(h[10:], ^fold(sum(h[:l.l4], 0)))
	}
	if l.proto == protoUDP {
		binary.BigEndian.PutUint16(h[l.l4+4:], uint16(n-l.l4))
	}
}

// pseudo returns the sum of the pseudo header of a packet of n bytes with header h.
func (l layout) pseudo(h []byte, n int) uint64 {
	addrs := h[12:20]
	if l.v6 {
		addrs = h[8:40]
	}
	return sum(addrs, uint64(l.proto)+uint64(n-l.l4))
}

func (l layout) setPartial(h []byte, n int) {
	binary.BigEndian.PutUint16(h[l.l4+l.csum():], fold(l.pseudo(h, n)))
}
