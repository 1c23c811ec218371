// Package relaywire encodes the messages between nodes and relays: the header with the slot (a
// relay's number for a node) to which a datagram is forwarded, the binding of a node's address to
// its slot, and the framing of both over TLS. The payload after a header is encrypted between the
// nodes. cluster-orchestrator/relay and netmanager/relaylink implement the protocol.
//
//	frame := relaywire.AppendFrame(nil, relaywire.Header{Slot: 7, Ticket: ticket})
//	frame = append(frame, datagram...)
package relaywire

import (
	"encoding/binary"
	"errors"
	"net/netip"
)

// The types of datagrams, in the first byte. Types below 0x10 belong to the tunnel; 0x20 to 0x2f
// are requests to a relay and their answers.
const (
	TypeFrame   = 0x10 // to a relay: forward the datagram after the header to a slot
	TypeRequest = 0x20 // to a relay: a binding request
	TypeAnswer  = 0x21 // from a relay: the answer
	TypeLate    = 0x22 // from a relay: the late answer
)

// HeaderLen is the length of the header before a datagram, in bytes.
const HeaderLen = 16

// ErrMalformed means that a message is invalid or not authentic.
var ErrMalformed = errors.New("malformed relay message")

// Header names the slot to which a relay forwards a frame. The ticket proves that the sender
// received the slot in a record (api.Relay).
type Header struct {
	Slot   uint32
	Ticket uint64
}

// AppendFrame appends the header's 16 bytes. The caller appends the datagram.
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
// It omits the zone of a link-local address, which has no meaning on other machines.
func appendAddr(b []byte, a netip.AddrPort) []byte {
	ip := a.Addr().As16()
	return binary.BigEndian.AppendUint16(append(b, ip[:]...), a.Port())
}

func parseAddr(b []byte) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)).Unmap(), binary.BigEndian.Uint16(b[16:]))
}
