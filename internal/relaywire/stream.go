package relaywire

import (
	"encoding/binary"
	"fmt"
	"io"
	"net/netip"
)

// Proto is the ALPN protocol of a relay on a cluster's TLS port (RFC 7301).
const Proto = "treeline-relay"

// MaxMessage is the longest message on a stream: the longest UDP datagram and
// an address.
const MaxMessage = 65507 + toLen

// toLen is how long the address before a frame to another relay is.
const toLen = 20

// typeTo begins a message for another relay.
const typeTo = 0x11

// Over TLS each message is preceded by its length in two bytes. An empty one
// asks the other side for one in turn, and shows that the connection lives.
// From a node come frames for its own relay's slots and, behind an address,
// frames for other relays; to a node go datagrams.

// AppendMessage appends one message for a stream. Longer ones than MaxMessage,
// which no caller has, are left out.
func AppendMessage(b, msg []byte) []byte {
	if len(msg) > 0xffff {
		return b
	}
	return append(binary.BigEndian.AppendUint16(b, uint16(len(msg))), msg...)
}

// AppendTo appends what precedes a frame for the relay at to.
func AppendTo(b []byte, to netip.AddrPort) []byte {
	return appendAddr(append(b, typeTo, 0), to)
}

// ParseTo splits a message for another relay; the frame, which is one, shares
// b's memory.
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

// ReadMessage reads the next message of a stream into buf, which it grows where
// that is too small, and returns the message. io.EOF is an end between messages.
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
