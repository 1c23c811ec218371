package relaywire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
)

// Proto is the ALPN protocol of a relay on a cluster's TLS port (RFC 7301).
const Proto = "treeline-relay"

// MaxMessage is the longest message on a stream in bytes: the longest UDP datagram and an
// address.
const MaxMessage = 65507 + toLen

// toLen is the length of the address before a frame to another relay.
const toLen = 20

// typeTo is the type of a message for another relay.
const typeTo = 0x11

// Over TLS each message is preceded by its length in two bytes. An empty message is a keep-alive,
// which the other side answers. A node sends frames for its own relay's slots and, after an
// address, frames for other relays; a relay sends datagrams.

// AppendMessage appends a message for a stream, given in parts. It appends nothing if the message
// is longer than MaxMessage.
func AppendMessage(b []byte, parts ...[]byte) []byte {
	start := len(b)
	b = append(b, 0, 0)
	for _, p := range parts {
		b = append(b, p...)
	}
	n := len(b) - start - 2
	if n > MaxMessage {
		return b[:start]
	}
	binary.BigEndian.PutUint16(b[start:], uint16(n))
	return b
}

// AppendTo appends the address before a frame for the relay at to.
func AppendTo(b []byte, to netip.AddrPort) []byte {
	return appendAddr(append(b, typeTo, 0), to)
}

// ParseTo splits a message for another relay. It checks the frame, which shares b's memory.
func ParseTo(b []byte) (to netip.AddrPort, frame []byte, ok bool) {
	if len(b) < toLen || b[0] != typeTo || b[1] != 0 {
		return netip.AddrPort{}, nil, false
	}
	to, frame = parseAddr(b[2:]), b[toLen:]
	if _, _, ok := ParseFrame(frame); !ok || to.Port() == 0 {
		return netip.AddrPort{}, nil, false
	}
	return to, frame, true
}

// ReadMessage reads the next message of a stream into buf, or into a new buffer if buf is too
// small, and returns it. It returns io.EOF if the stream ends between two messages.
func ReadMessage(r io.Reader, buf []byte) ([]byte, error) {
	var length [2]byte
	if _, err := io.ReadFull(r, length[:]); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint16(length[:]))
	if cap(buf) < n {
		buf = make([]byte, n)
	}
	buf = buf[:n]
	if _, err := io.ReadFull(r, buf); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("read a relay message of %d bytes: %w", n, err)
	}
	return buf, nil
}
