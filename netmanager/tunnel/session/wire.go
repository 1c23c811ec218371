// Package session implements the handshake between two nodes and the keys that result: Noise IK
// (noiseprotocol.org, revision 34) for the handshake, an AEAD with a counter for packets, and WireGuard's
// protection against floods (Donenfeld, "WireGuard: Next Generation Kernel Network Tunnel", NDSS 2017,
// §5).
//
// It has no clock, socket or goroutine: time and randomness are arguments. Package tunnel
// decides which peers are allowed, when to start a handshake and where to send.
//
//	try, msg, err := session.Initiate(rand, me, peer, 7, session.Hello{Stamp: 1, AES: true})
//	offer, err := session.ReadInitiation(rand, other, msg) // at the peer: offer.Peer is proven
//	reply, theirs, err := offer.Accept(9, session.Hello{}) // theirs is not confirmed yet
//	mine, hello, err := try.Finish(reply)
//	datagram := mine.Seal(nil, session.Data, packet)
package session

import (
	"encoding/binary"
	"errors"
)

// The types of datagrams, in the first byte. The next three bytes are zero.
const (
	TypeInitiation = 1
	TypeResponse   = 2
	TypeCookie     = 3
	TypeTransport  = 4
	// TypeUnknown answers a transport message with an unknown receiver index, for example after a
	// restart: the sender should start a handshake. It is not authenticated. It echoes the header, so
	// only a node that saw the message can send it, and is shorter than the message.
	TypeUnknown = 5
)

// Lengths of messages, in bytes. All integers are big endian.
//
//	initiation: type, 0 0 0, sender 4, e 32, static 32+16, hello 13+16, mac1 16, mac2 16
//	response:   type, 0 0 0, sender 4, receiver 4, e 32, hello 13+16, mac1 16, mac2 16
//	cookie:     type, 0 0 0, receiver 4, nonce 24, cookie 16+16
//	transport:  type, 0 0 0, receiver 4, kind 1, counter 7, sealed packet n+16
//	unknown:    type, 0 0 0, receiver 4, kind 1, counter 7
const (
	macLen        = 16
	helloLen      = 13
	InitiationLen = 8 + 32 + 48 + helloLen + 16 + 2*macLen
	ResponseLen   = 12 + 32 + helloLen + 16 + 2*macLen
	CookieLen     = 8 + 24 + 32
	HeaderLen     = 16
	// Overhead is the length of a transport message without its packet.
	Overhead = HeaderLen + 16
)

// Kind is the kind of a transport message. It is part of the nonce and therefore authenticated.
type Kind byte

// The kinds of transport message.
const (
	Data    Kind = 0 // an IP packet; empty: a keep-alive
	Partial Kind = 1 // an IP packet whose transport checksum covers the pseudo header only
	Control Kind = 2 // a payload of tunnel.Engine.SendControl
)

// ErrMalformed means an invalid message, ErrDenied one that fails authentication.
var (
	ErrMalformed = errors.New("malformed message")
	ErrDenied    = errors.New("message does not authenticate")
)

// Type returns the type of a datagram; 0 if its length or its zero bytes are wrong.
func Type(b []byte) byte {
	if len(b) < 4 || b[1]|b[2]|b[3] != 0 {
		return 0
	}
	ok := false
	switch b[0] {
	case TypeInitiation:
		ok = len(b) == InitiationLen
	case TypeResponse:
		ok = len(b) == ResponseLen
	case TypeCookie:
		ok = len(b) == CookieLen
	case TypeTransport:
		ok = len(b) >= Overhead
	case TypeUnknown:
		ok = len(b) == HeaderLen
	}
	if !ok {
		return 0
	}
	return b[0]
}

// Receiver returns the receiver index in a response, cookie, transport or unknown message that has passed
// Type.
func Receiver(b []byte) uint32 {
	if b[0] == TypeResponse {
		return binary.BigEndian.Uint32(b[8:])
	}
	return binary.BigEndian.Uint32(b[4:])
}

// Unknown returns the answer to a transport message with an unknown index.
func Unknown(b []byte) (reply [HeaderLen]byte) {
	copy(reply[:], b[:HeaderLen])
	reply[0] = TypeUnknown
	return reply
}
