// Package agree is what two nodes tell each other, inside their session, of the
// kernel's ways between them: which ones each takes the other's packets in by, and
// how much has come by them. A node sends in the clear only what its peer has said
// it takes, so that no packet leaves by a way on which nobody expects it, or which
// the peer's operator has not called clear.
//
// It has the messages and how they look on the wire. What a node says, and which way
// follows from what it hears, is netmanager/overlay's; that a message comes from the
// peer that it seems to come from is the tunnel's. Who says nothing gets the tunnel.
//
//	b := agree.Terms{Serial: 7, From: peer, At: own, Ways: plane.Ways{Route: true}}.Append(nil)
//	msg, err := agree.Parse(b)
package agree

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// ErrMalformed is what Parse says of bytes that are none of our messages. Those of
// overlay/paths and overlay/notice, which share the sessions, are such.
var ErrMalformed = errors.New("malformed agreement")

// MaxAt is how many addresses Terms name at most.
const MaxAt = 8

// Message is Terms, a Probe or Arrived.
type Message interface {
	// Append appends the message as it is on the wire.
	Append(b []byte) []byte
}

// Terms are by which ways the sender takes in what the receiver sends in the clear:
// all of them, at any time, until other Terms take their place. They are repeated
// until the receiver's have their Serial as Ack, or in vain.
type Terms struct {
	// Serial grows with each change, also over restarts of the sender: Terms with a
	// lower one than the last are late.
	Serial uint64 `json:"-"`
	// Ack is the Serial of the last Terms that the sender has heard of the receiver's
	// in this session; another than theirs asks for them.
	Ack  uint64     `json:"-"`
	Ways plane.Ways `json:"ways,omitzero"`
	// From is the receiver's address that packets must come from, and At are the
	// sender's that they may be sent to, MaxAt at most; all IPv4.
	From netip.Addr   `json:"from,omitzero"`
	At   []netip.Addr `json:"at,omitempty"`
	Port uint16       `json:"port,omitempty"` // of VXLAN
}

// Same reports whether both let in the same.
func (t Terms) Same(o Terms) bool {
	return t.Ways == o.Ways && t.From == o.From && t.Port == o.Port && slices.Equal(t.At, o.At)
}

// Probe asks how much of the sender's has come by the kernel's ways.
type Probe struct{ Serial uint64 }

// Arrived answers the Probe of that Serial. Bytes is a counter that begins anywhere
// and grows, unless it begins anew.
type Arrived struct {
	Serial uint64
	Bytes  uint64
}

// The types begin where those of overlay/paths and overlay/notice do not come.
const (
	typeTerms = 0x18 + iota
	typeProbe
	typeArrived

	flagRoute = 1
	flagVXLAN = 2

	head     = 1 + 8
	termsLen = head + 8 + 1 + 2 + 4 + 1
)

// Append is Message's. Of more addresses the first MaxAt are said.
func (t Terms) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, typeTerms), t.Serial)
	b = binary.BigEndian.AppendUint64(b, t.Ack)
	flags := byte(0)
	if t.Ways.Route {
		flags |= flagRoute
	}
	if t.Ways.VXLAN {
		flags |= flagVXLAN
	}
	b = binary.BigEndian.AppendUint16(append(b, flags), t.Port)
	b = appendAddr(b, t.From)
	at := t.At[:min(len(t.At), MaxAt)]
	b = append(b, byte(len(at)))
	for _, a := range at {
		b = appendAddr(b, a)
	}
	return b
}

// appendAddr writes what is no IPv4 address as 0.0.0.0.
func appendAddr(b []byte, a netip.Addr) []byte {
	var four [4]byte
	if a.Is4() {
		four = a.As4()
	}
	return append(b, four[:]...)
}

func readAddr(b []byte) netip.Addr {
	if a := netip.AddrFrom4([4]byte(b)); !a.IsUnspecified() {
		return a
	}
	return netip.Addr{}
}

// Append is Message's.
func (p Probe) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, typeProbe), p.Serial)
}

// Append is Message's.
func (a Arrived) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, typeArrived), a.Serial)
	return binary.BigEndian.AppendUint64(b, a.Bytes)
}

// Parse reads a message. Flags that it does not know, and bytes after the message,
// are left to later versions.
func Parse(b []byte) (Message, error) {
	if len(b) < head {
		return nil, ErrMalformed
	}
	serial := binary.BigEndian.Uint64(b[1:])
	switch {
	case b[0] == typeProbe:
		return Probe{serial}, nil
	case b[0] == typeArrived && len(b) >= head+8:
		return Arrived{serial, binary.BigEndian.Uint64(b[head:])}, nil
	case b[0] == typeTerms && len(b) >= termsLen:
		return parseTerms(serial, b[head:])
	}
	return nil, ErrMalformed
}

func parseTerms(serial uint64, b []byte) (Message, error) {
	t := Terms{Serial: serial, Ack: binary.BigEndian.Uint64(b)}
	b = b[8:]
	t.Ways = plane.Ways{Route: b[0]&flagRoute != 0, VXLAN: b[0]&flagVXLAN != 0}
	t.Port, t.From = binary.BigEndian.Uint16(b[1:]), readAddr(b[3:])
	n, b := int(b[7]), b[8:]
	if n > MaxAt || len(b) < 4*n {
		return nil, ErrMalformed
	}
	for i := range n {
		t.At = append(t.At, readAddr(b[4*i:]))
	}
	return t, nil
}
