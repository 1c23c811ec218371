// Package relaywire is what a node and a relay say to one another: the header
// by which a datagram finds its slot, the binding by which a node tells the
// relay where it is, and the framing of both over TLS. It knows bytes only;
// cluster-orchestrator/relay and netmanager/relaylink speak it. What a datagram
// carries after the header is between the nodes and encrypted.
//
//	frame := relaywire.AppendFrame(nil, relaywire.Header{Slot: 7, Ticket: ticket})
//	frame = append(frame, datagram...)
package relaywire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// The first byte of a datagram says what it is. Those below 0x10 are the
// tunnel's own; 0x20 to 0x2f are a relay's answers and nobody else's.
const (
	TypeFrame   = 0x10 // to a relay: forward what follows the header to a slot
	TypeRequest = 0x20 // to a relay: here I am
	TypeAnswer  = 0x21 // from a relay: there you are
	TypeLate    = 0x22 // from a relay: the mapping still lives
)

// HeaderLen is how many bytes a frame has before the datagram.
const HeaderLen = 16

// ErrMalformed is what parsers say of bytes that are none of ours.
var ErrMalformed = errors.New("malformed relay message")

// Header says to which slot a relay forwards a frame, and shows that the sender
// has it from a route.
type Header struct {
	Slot   uint32
	Ticket uint64
}

// AppendFrame appends the header's 16 bytes; the datagram follows.
func AppendFrame(b []byte, h Header) []byte {
	b = append(b, TypeFrame, 0, 0, 0)
	b = binary.BigEndian.AppendUint32(b, h.Slot)
	return binary.BigEndian.AppendUint64(b, h.Ticket)
}

// ParseFrame splits a frame. The datagram shares b's memory and is not empty.
func ParseFrame(b []byte) (h Header, datagram []byte, ok bool) {
	if len(b) <= HeaderLen || binary.BigEndian.Uint32(b) != TypeFrame<<24 {
		return Header{}, nil, false
	}
	return Header{binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])}, b[HeaderLen:], true
}

// appendAddr appends 18 bytes: the address as IPv6 (IPv4 mapped) and the port.
// The zone of a link-local address is lost: it means nothing elsewhere.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	return binary.BigEndian.AppendUint16(append(b, ip[:]...), a.Port())
}

// parseAddr reads appendAddr's 18 bytes.
func parseAddr(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:]))
}
