// Package notice is how nodes inform one another of the instances that they host:
// which of them accept no new flows any more. Orchestrators send the same in routes,
// but later, and not at all while one of them is down.
//
// It has the messages (Notice, Ack) with their encoding, a Sender that decides what
// peers are sent and repeats it until they confirm, and a Receiver that keeps what
// peers sent. The tunnel proves that a message comes from its peer.
//
//	b := notice.Notice{Serial: 7, Entries: []notice.Entry{{Address: a, Of: notice.Of(key), State: notice.Draining}}}.Append(nil)
//	msg, err := notice.Parse(b)
package notice

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"

	"github.com/treeline-edge/treeline/internal/wire"
)

// ErrMalformed is the error of Parse. Parse returns it for the messages of
// overlay/paths too, which share the sessions.
var ErrMalformed = errors.New("malformed notice")

// MaxEntries bounds the entries of a Notice. With them it fits the MTU of any path.
const MaxEntries = 64

// State says which flows a placement accepts.
type State uint8

const (
	// Accepting means that it accepts new flows, again.
	Accepting State = iota
	// Draining means that new flows should go elsewhere. Existing flows continue.
	Draining
	// Gone means that the placement does not exist any more.
	Gone
)

// Placement identifies one placement of one instance.
type Placement uint64

// Of returns the placement of a key. It is never 0.
func Of(k wire.Key) Placement {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.String()))
	return Placement(max(1, h.Sum64()))
}

// Entry is the state of one placement at one address of the sender's subnet.
type Entry struct {
	Address netip.Addr // IPv4
	// Of tells the placements that use an address one after another apart. 0 means any
	// placement that the receiver knows there: the sender does not remember it.
	Of    Placement
	State State
}

// Message is a Notice or an Ack.
type Message interface {
	// Append appends the encoded message to b.
	Append(b []byte) []byte
}

// Notice is all that the sender's peers should know. It says nothing about addresses
// without an entry. It is repeated until an Ack arrives, a limited number of times.
type Notice struct {
	// Serial grows with each change of the entries, also across restarts of the sender.
	// A Notice with a lower Serial than the last one is late.
	Serial  uint64
	Entries []Entry
}

// Ack confirms that a Notice and all earlier ones are in effect: no new flow goes to
// an instance that does not accept it.
type Ack struct{ Serial uint64 }

// The message types of overlay/paths, overlay/notice and overlay/agree are disjoint.
const (
	typeNotice = 0x10 + iota
	typeAck

	headLen  = 1 + 8
	entryLen = 4 + 8 + 1
)

// Append implements Message. It encodes the first MaxEntries entries.
func (n Notice) Append(b []byte) []byte {
	entries := n.Entries[:min(len(n.Entries), MaxEntries)]
	b = binary.BigEndian.AppendUint64(append(b, typeNotice), n.Serial)
	b = append(b, byte(len(entries)))
	for _, e := range entries {
		a := e.Address.As4()
		b = binary.BigEndian.AppendUint64(append(b, a[:]...), uint64(e.Of))
		b = append(b, byte(e.State))
	}
	return b
}

// Append implements Message.
func (a Ack) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, typeAck), a.Serial)
}

// Parse decodes a message. It allocates no more than len(b) justifies. It ignores
// bytes after the message, which a later version may use.
func Parse(b []byte) (Message, error) {
	if len(b) < headLen {
		return nil, ErrMalformed
	}
	serial := binary.BigEndian.Uint64(b[1:])
	switch b[0] {
	case typeAck:
		return Ack{serial}, nil
	case typeNotice:
		return parseNotice(serial, b[headLen:])
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
