// Package parts carries a message that is larger than a bus takes, as several
// that follow one another on one topic. It promises no more than the bus does: a
// part that is lost takes the message along, and whoever sent it repeats it. So
// nothing waits and nothing is acknowledged; what is half here is dropped when
// the next message begins.
//
//	for _, p := range parts.Split(payload) { publish(p) }
//	whole, ok := joiner.Add(m.Payload)
package parts

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"

	"github.com/treeline-edge/treeline/internal/bus"
)

// A part begins with a byte that no message of ours begins with (JSON does not),
// the first bytes of the whole's SHA-256, the part's number and how many there are.
const (
	mark   = 0x01
	idSize = 8
	header = 1 + idSize + 2 + 2
	room   = bus.MaxPayload - header
)

// Max is the largest message that Split takes: the parts of one fit into what
// brokers keep for a slow reader.
const Max = 12 << 20

// Split is the message as it travels: as it is if the bus takes it, else in
// parts. One that is larger than Max is bus.ErrTooBig.
func Split(payload []byte) ([][]byte, error) {
	switch {
	case len(payload) <= bus.MaxPayload:
		return [][]byte{payload}, nil
	case len(payload) > Max:
		return nil, bus.ErrTooBig
	}
	sum := sha256.Sum256(payload)
	count := (len(payload) + room - 1) / room
	all := make([][]byte, 0, count)
	for n := range count {
		piece := payload[n*room : min(len(payload), (n+1)*room)]
		p := make([]byte, 0, header+len(piece))
		p = append(p, mark)
		p = append(p, sum[:idSize]...)
		p = binary.BigEndian.AppendUint16(p, uint16(n))
		p = binary.BigEndian.AppendUint16(p, uint16(count))
		all = append(all, append(p, piece...))
	}
	return all, nil
}

// Joiner puts the messages of one topic together again. It has one owner.
type Joiner struct {
	id   [idSize]byte
	next uint16
	buf  []byte
}

// Add takes what came and returns the message that is whole with it, if one is.
// A part that came twice changes nothing; one out of order ends its message.
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
	case n == 0:
		*j = Joiner{id: id}
	case id == j.id && n+1 == j.next:
		return nil, false // again
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

// Waits reports whether a message is half here.
func (j *Joiner) Waits() bool { return j.next > 0 }

// Len is the number of bytes that the joiner holds of an unfinished message.
func (j *Joiner) Len() int { return len(j.buf) }
