// Package agree has the messages by which two nodes agree, inside their session, on
// kernel paths that need no tunnel: by which of them each accepts packets, and how
// much arrived. A node sends unencrypted packets only as its peer accepts them, so
// that no packet takes a path that the peer's operator did not declare unencrypted.
//
// netmanager/overlay/kernelpath decides what to send and which path follows. The
// tunnel authenticates the messages. A peer that sends no terms is reached by the
// tunnel.
//
//	b := agree.Terms{Serial: 7, From: peer, At: own, Ways: plane.Paths{Route: true}}.Append(nil)
//	msg, err := agree.Parse(b)
package agree

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// ErrMalformed is the error of Parse. Parse returns it for the messages of
// overlay/paths and overlay/notice too, which share the sessions.
var ErrMalformed = errors.New("malformed agreement")

// MaxAt bounds the addresses in Terms.
const MaxAt = 8

// Message is Terms, a Probe or Arrived.
type Message interface {
	// Append appends the encoded message to b.
	Append(b []byte) []byte
}

// Terms are the kernel paths by which the sender accepts the receiver's packets: all
// of them, at any time, until other Terms replace them. They are repeated until the
// receiver's Terms have their Serial as Ack, a limited number of times.
type Terms struct {
	// Serial grows with each change, also across restarts of the sender. Terms with a
	// lower Serial than the last ones are late.
	Serial uint64 `json:"-"`
	// Ack is the Serial of the receiver's last Terms that the sender received in this
	// session. Another Serial requests the current ones.
	Ack  uint64      `json:"-"`
	Ways plane.Paths `json:"ways,omitzero"`
	// From is the receiver's address from which packets must come, and At are the
	// sender's addresses to which they may be sent, MaxAt at most. All are IPv4.
	From netip.Addr   `json:"from,omitzero"`
	At   []netip.Addr `json:"at,omitempty"`
	Port uint16       `json:"port,omitempty"` // of VXLAN
}

// Same reports whether both accept the same packets.
func (t Terms) Same(o Terms) bool {
	return t.Ways == o.Ways && t.From == o.From && t.Port == o.Port && slices.Equal(t.At, o.At)
}

// Probe asks how many bytes of the sender arrived by kernel paths.
type Probe struct{ Serial uint64 }

// Arrived answers the Probe with that Serial. Bytes is a counter with any start value.
// It may be reset.
type Arrived struct {
	Serial uint64
	Bytes  uint64
}

// The message types of overlay/paths, overlay/notice and overlay/agree are disjoint.
const (
	typeTerms = 0x18 + iota
	typeProbe
	typeArrived

	flagRoute = 1
	flagVXLAN = 2

	head     = 1 + 8
	termsLen = head + 8 + 1 + 2 + 4 + 1
)

// Append implements Message. It encodes the first MaxAt addresses.
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

// appendAddr encodes an address that is not IPv4 as 0.0.0.0.
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

// Append implements Message.
func (p Probe) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, typeProbe), p.Serial)
}

// Append implements Message.
func (a Arrived) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(append(b, typeArrived), a.Serial)
	return binary.BigEndian.AppendUint64(b, a.Bytes)
}

// Parse decodes a message. It ignores unknown flags and bytes after the message, which
// a later version may use.
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
	t.Ways = plane.Paths{Route: b[0]&flagRoute != 0, VXLAN: b[0]&flagVXLAN != 0}
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
