// Package notice is what nodes tell one another, inside their sessions, of the
// instances that they host: which of them take no new flows any more. Orchestrators
// say the same by routes, later, and not at all while one of them is away.
//
// It has the words and how they look on the wire. When something is told, to whom,
// and what is believed of it is netmanager/overlay's; that a message comes from the
// peer that it seems to come from is the tunnel's.
//
//	b := notice.Notice{Serial: 7, Words: []notice.Word{{Address: a, Of: notice.Of(key), State: notice.Leaving}}}.Append(nil)
//	msg, err := notice.Parse(b)
package notice

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"

	"github.com/treeline-edge/treeline/api"
)

// ErrMalformed is what Parse says of bytes that are none of our messages. The
// messages of overlay/paths are such, as ours are to it.
var ErrMalformed = errors.New("malformed notice")

// MaxWords is how many words a Notice has at most: with them it fits any path.
const MaxWords = 64

// State is what becomes of flows to a placement.
type State uint8

// The states of placements.
const (
	// Takes: new flows may come, again.
	Takes State = iota
	// Leaving: new flows shall go elsewhere, those that there are go on.
	Leaving
	// Gone: it is not there any more.
	Gone
)

// Placement stands for one placement of one instance.
type Placement uint64

// Of is the placement of that key, and never 0.
func Of(k api.Key) Placement {
	h := fnv.New64a()
	_, _ = h.Write([]byte(k.String()))
	return Placement(max(1, h.Sum64()))
}

// Word is what is true of one placement at one address of the sender's subnet.
type Word struct {
	Address netip.Addr // IPv4
	// Of says which: addresses are used again. 0: whatever placement the receiver
	// believes to be there, which the sender does not remember.
	Of    Placement
	State State
}

// Message is a Notice or an Ack.
type Message interface {
	// Append appends the message as it is on the wire.
	Append(b []byte) []byte
}

// Notice is all that the sender's peers should know, each word whole in itself; of
// addresses that it does not name it says nothing. It is repeated until an Ack
// comes, or in vain.
type Notice struct {
	// Serial grows with each change of the words, also over restarts of the sender: one
	// that is lower than the last is late.
	Serial uint64
	Words  []Word
}

// Ack says that a Notice, and all before it, is heeded: no new flow goes where it
// should not.
type Ack struct{ Serial uint64 }

// The types begin where those of overlay/paths, which share the sessions, do not come.
const (
	typeNotice = 0x10 + iota
	typeAck

	head    = 1 + 8
	wordLen = 4 + 8 + 1
)

// Append is Message's. Of a longer list the first MaxWords are said.
func (n Notice) Append(b []byte) []byte {
	words := n.Words[:min(len(n.Words), MaxWords)]
	b = binary.BigEndian.AppendUint64(append(b, typeNotice), n.Serial)
	b = append(b, byte(len(words)))
	for _, w := range words {
		a := w.Address.As4()
		b = binary.BigEndian.AppendUint64(append(b, a[:]...), uint64(w.Of))
		b = append(b, byte(w.State))
	}
	return b
}

// Append is Message's.
func (a Ack) Append(b []byte) []byte {
	return binary.BigEndian.AppendUint64(append(b, typeAck), a.Serial)
}

// Parse reads a message. It allocates nothing that b does not pay for. Bytes after
// the message are left to later versions.
func Parse(b []byte) (Message, error) {
	if len(b) < head {
		return nil, ErrMalformed
	}
	serial := binary.BigEndian.Uint64(b[1:])
	switch b[0] {
	case typeAck:
		return Ack{serial}, nil
	case typeNotice:
		return parseNotice(serial, b[head:])
	}
	return nil, ErrMalformed
}

func parseNotice(serial uint64, b []byte) (Message, error) {
	if len(b) == 0 || b[0] > MaxWords || len(b) < 1+int(b[0])*wordLen {
		return nil, ErrMalformed
	}
	n := Notice{Serial: serial, Words: make([]Word, b[0])}
	b = b[1:]
	for i := range n.Words {
		n.Words[i] = Word{netip.AddrFrom4([4]byte(b)), Placement(binary.BigEndian.Uint64(b[4:])), State(b[12])}
		if n.Words[i].State > Gone {
			return nil, ErrMalformed
		}
		b = b[wordLen:]
	}
	return n, nil
}
