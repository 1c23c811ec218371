// Package peermsg defines the messages between the cores of two nodes: notices about instances, and terms
// of kernel paths. Their session authenticates them. It also carries the messages of package paths, whose
// types differ.
//
// Packages notice and kernelpath decide what to send.
//
//	b := peermsg.Notice{Serial: 7, Entries: entries}.Append(nil)
//	msg, err := peermsg.Parse(b)
package peermsg

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"
	"slices"

	"github.com/treeline-edge/treeline/internal/wire"
	"github.com/treeline-edge/treeline/netmanager/overlay/plane"
)

// ErrMalformed is returned by Parse, also for messages of package paths.
var ErrMalformed = errors.New("malformed peer message")

const (
	// MaxEntries bounds the entries of a Notice, so that it fits the MTU of any path.
	MaxEntries = 64
	// MaxTermsAddresses bounds the addresses in Terms.
	MaxTermsAddresses = 8
)

// Message is a Notice, NoticeAck, Terms, TrafficProbe or Traffic.
type Message interface {
	// Append appends the encoded message to b.
	Append(b []byte) []byte
}

// State is whether a placement accepts flows.
type State uint8

const (
	// Accepting means that it accepts new flows (again).
	Accepting State = iota
	// Draining means that new flows should go elsewhere. Existing flows continue.
	Draining
	// Gone means that the placement does not exist any more.
	Gone
)

// Placement identifies one placement of one instance.
type Placement uint64

// PlacementOf returns the placement of a key. It is never 0.
func PlacementOf(k wire.Key) Placement {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.String()))
	return Placement(max(1, h.Sum64()))
}

// Entry is the state of one placement at one address of the sender's subnet.
type Entry struct {
	Address netip.Addr // IPv4
	// Of distinguishes the placements that use an address one after another. 0 means any placement that
	// the receiver knows there, because the sender does not have the key any more.
	Of    Placement
	State State
}

// Notice is all that the sender reports to its peers. It is repeated a limited number of times until a
// NoticeAck arrives. Addresses without an entry are unchanged.
type Notice struct {
	// Serial grows with each change of the entries, also across restarts of the sender. Receivers drop a
	// Notice with a lower Serial than the last one.
	Serial  uint64
	Entries []Entry
}

// NoticeAck confirms that the receiver has applied a Notice and all earlier ones: no new flow goes to an
// instance that does not accept it.
type NoticeAck struct{ Serial uint64 }

// Terms are the kernel paths on which the sender accepts the receiver's packets, all at the same time,
// until other Terms replace them. They are repeated a limited number of times until the receiver's Terms
// have their Serial as Ack.
type Terms struct {
	// Serial grows with each change, also across restarts of the sender. Receivers drop Terms with a
	// lower Serial than the last ones.
	Serial uint64 `json:"-"`
	// Ack is the Serial of the last Terms that the sender received in this session. If it is not the last
	// Serial of the receiver, the receiver sends its Terms again.
	Ack   uint64      `json:"-"`
	Paths plane.Paths `json:"ways,omitzero"` // on which packets are accepted
	// From is the receiver's address from which packets must come. At are the sender's addresses to which
	// they may be sent, MaxTermsAddresses at most. All are IPv4.
	From netip.Addr   `json:"from,omitzero"`
	At   []netip.Addr `json:"at,omitempty"`
	Port uint16       `json:"port,omitempty"` // of VXLAN
}

// Same reports whether t and o accept the same packets.
func (t Terms) Same(o Terms) bool {
	return t.Paths == o.Paths && t.From == o.From && t.Port == o.Port && slices.Equal(t.At, o.At)
}

// TrafficProbe requests how many bytes from the sender arrived by kernel paths.
type TrafficProbe struct{ Serial uint64 }

// Traffic answers the TrafficProbe with that Serial. Bytes is a counter. Its start value is arbitrary,
// and it may be reset.
type Traffic struct {
	Serial uint64
	Bytes  uint64
}

// The first byte of a message. The types of package paths are lower.
const (
	typeNotice       = 0x10
	typeNoticeAck    = 0x11
	typeTerms        = 0x18
	typeTrafficProbe = 0x19
	typeTraffic      = 0x1a
)

// Lengths in bytes, and flags.
const (
	headLen    = 1 + 8 // type and serial
	entryLen   = 4 + 8 + 1
	trafficLen = headLen + 8
	termsLen   = headLen + 8 + 1 + 2 + 4 + 1

	flagRoute = 1
	flagVXLAN = 2
)

func head(b []byte, typ byte, serial uint64) []byte {
	return binary.BigEndian.AppendUint64(append(b, typ), serial)
}

// Append implements Message. It encodes the first MaxEntries entries.
func (n Notice) Append(b []byte) []byte {
	entries := n.Entries[:min(len(n.Entries), MaxEntries)]
	b = head(b, typeNotice, n.Serial)
	b = append(b, byte(len(entries)))
	for _, e := range entries {
		a := e.Address.As4()
		b = binary.BigEndian.AppendUint64(append(b, a[:]...), uint64(e.Of))
		b = append(b, byte(e.State))
	}
	return b
}

// Append implements Message.
func (a NoticeAck) Append(b []byte) []byte { return head(b, typeNoticeAck, a.Serial) }

// Append implements Message. It encodes the first MaxTermsAddresses addresses.
func (t Terms) Append(b []byte) []byte {
	b = head(b, typeTerms, t.Serial)
	b = binary.BigEndian.AppendUint64(b, t.Ack)
	flags := byte(0)
	if t.Paths.Route {
		flags |= flagRoute
	}
	if t.Paths.VXLAN {
		flags |= flagVXLAN
	}
	b = binary.BigEndian.AppendUint16(append(b, flags), t.Port)
	b = appendAddr(b, t.From)
	at := t.At[:min(len(t.At), MaxTermsAddresses)]
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
func (p TrafficProbe) Append(b []byte) []byte { return head(b, typeTrafficProbe, p.Serial) }

// Append implements Message.
func (t Traffic) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(head(b, typeTraffic, t.Serial), t.Bytes)
}

// Parse decodes a message. It allocates no more than len(b) justifies. It ignores unknown flags
// and bytes after the message, which a later version may use.
func Parse(b []byte) (Message, error) {
	if len(b) < headLen {
		return nil, ErrMalformed
	}
	serial, body := binary.BigEndian.Uint64(b[1:]), b[headLen:]
	switch {
	case b[0] == typeNotice:
		return parseNotice(serial, body)
	case b[0] == typeNoticeAck:
		return NoticeAck{serial}, nil
	case b[0] == typeTerms && len(b) >= termsLen:
		return parseTerms(serial, body)
	case b[0] == typeTrafficProbe:
		return TrafficProbe{serial}, nil
	case b[0] == typeTraffic && len(b) >= trafficLen:
		return Traffic{serial, binary.BigEndian.Uint64(body)}, nil
	}
	return nil, ErrMalformed
}

func parseNotice(serial uint64, b []byte) (Message, error) {
	if len(b) == 0 || b[0] > MaxEntries || len(b) < 1+int(b[0])*entryLen {
		return nil, ErrMalformed
	}
	n := Notice{Serial: serial, Entries: make([]Entry, b[0])}
	b = b[1:]
	for i := range n.Entries {
		n.Entries[i] = Entry{netip.AddrFrom4([4]byte(b)), Placement(binary.BigEndian.Uint64(b[4:])), State(b[12])}
		if n.Entries[i].State > Gone {
			return nil, ErrMalformed
		}
		b = b[entryLen:]
	}
	return n, nil
}

func parseTerms(serial uint64, b []byte) (Message, error) {
	t := Terms{Serial: serial, Ack: binary.BigEndian.Uint64(b)}
	b = b[8:]
	t.Paths = plane.Paths{Route: b[0]&flagRoute != 0, VXLAN: b[0]&flagVXLAN != 0}
	t.Port, t.From = binary.BigEndian.Uint16(b[1:]), readAddr(b[3:])
	n, b := int(b[7]), b[8:]
	if n > MaxTermsAddresses || len(b) < 4*n {
		return nil, ErrMalformed
	}
	for i := range n {
		t.At = append(t.At, readAddr(b[4*i:]))
	}
	return t, nil
}
