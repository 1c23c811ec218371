// Package parts splits a message that is larger than bus.MaxPayload into several on the same topic.
// Parts are not acknowledged: if one is lost, the message is lost, and the sender repeats it. A new
// message replaces an incomplete one.
package parts

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/treeline-edge/treeline/internal/bus"
)

// A part begins with mark, which no message begins with (they are JSON), the first bytes of the
// whole message's SHA-256, the index of the part and the number of parts.
const (
	mark    = 0x01
	idSize  = 8
	header  = 1 + idSize + 2 + 2
	maxPart = bus.MaxPayload - header
)

// Max bounds a message, in bytes. Its parts fit into a broker's queue for a slow reader.
const Max = 12 << 20

// Split returns the message unchanged if it fits bus.MaxPayload, else in parts. It fails with
// bus.ErrTooBig above Max.
func Split(payload []byte) ([][]byte, error) {
	switch {
	case len(payload) <= bus.MaxPayload:
		return [][]byte{payload}, nil
	case len(payload) > Max:
		return nil, bus.ErrTooBig
	}
	sum := sha256.Sum256(payload)
	count := (len(payload) + maxPart - 1) / maxPart
	all := make([][]byte, 0, count)
	for n := range count {
		piece := payload[n*maxPart : min(len(payload), (n+1)*maxPart)]
		p := make([]byte, 0, header+len(piece))
		p = append(p, mark)
		p = append(p, sum[:idSize]...)
		p = binary.BigEndian.AppendUint16(p, uint16(n))
		p = binary.BigEndian.AppendUint16(p, uint16(count))
		all = append(all, append(p, piece...))
	}
	return all, nil
}

// Joiner joins the parts of one topic's messages. It is for one goroutine.
type Joiner struct {
	id   [idSize]byte
	next uint16
	buf  []byte
}

// Add takes a payload and returns the message that it completes; ok is false if there is none. A
// duplicate of a part is ignored. If a part is missing, the message is dropped.
func (j *Joiner) Add(payload []byte) (whole []byte, ok bool) {
	if len(payload) == 0 || payload[0] != mark {
		return payload, true
	}
	if len(payload) < header {
		return nil, false
	}
	id := [idSize]byte(payload[1:])
	n := binary.BigEndian.Uint16(payload[1+idSize:])
	count := binary.BigEndian.Uint16(payload[3+idSize:])
	piece := payload[header:]
	switch {
	case id == j.id && n < j.next:
		return nil, false // a duplicate
	case n == 0:
		*j = Joiner{id: id}
	case id != j.id || n != j.next || j.next == 0:
		*j = Joiner{}
		return nil, false
	}
	if len(j.buf)+len(piece) > Max {
		*j = Joiner{}
		return nil, false
	}
	j.buf = append(j.buf, piece...)
	if j.next = n + 1; j.next != count {
		return nil, false
	}
	whole = j.buf
	*j = Joiner{}
	sum := sha256.Sum256(whole)
	return whole, bytes.Equal(sum[:idSize], id[:])
}

// Waits reports whether further parts of a message are expected.
func (j *Joiner) Waits() bool { return j.next > 0 }

// Len returns the size of the incomplete message, in bytes.
func (j *Joiner) Len() int { return len(j.buf) }
