// Package session is what two nodes say to be sure of one another, and the keys
// that come of it: Noise IK (noiseprotocol.org, revision 34) for the handshake, an
// AEAD with a counter for the rest, and WireGuard's means against floods
// (Donenfeld, "WireGuard: Next Generation Kernel Network Tunnel", NDSS 2017, §5).
//
// It has no clock, socket or goroutine: time and randomness are arguments. Who may
// talk, when to begin and where to send is the engine's (package tunnel).
//
//	try, msg, err := session.Initiate(rand, me, peer, 7, session.Hello{Stamp: 1, AES: true})
//	offer, err := session.ReadInitiation(rand, other, msg) // at the peer: knows offer.Peer now
//	reply, theirs, err := offer.Accept(9, session.Hello{}) // agreed; not yet confirmed
//	mine, hello, err := try.Finish(reply)
//	datagram := mine.Seal(nil, session.Data, packet)
package session

import (
	"encoding/binary"
	"errors"
)

// The first byte of a datagram says what it is; the next three are zero.
const (
	TypeInitiation = 1
	TypeResponse   = 2
	TypeCookie     = 3
	TypeTransport  = 4
	// TypeUnknown answers a transport message whose receiver index means nothing
	// here, as after a restart: the sender should begin anew. It is a hint without
	// proof, echoes the header so that only who saw the message can make one, and is
	// smaller than what it answers.
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
	// Overhead is what a transport message is longer than its packet.
	Overhead = HeaderLen + 16
)

// Kind says what a transport message carries. It is part of the nonce, and so
// authenticated.
type Kind byte

// The kinds of transport message.
const (
	Data    Kind = 0 // an IP packet; empty: to keep alive
	Partial Kind = 1 // an IP packet whose transport checksum covers the pseudo header only
	Control Kind = 2 // for those who find paths
)

// ErrMalformed is any message that cannot be what it says it is; ErrDenied one
// that is not from whom it says.
var (
	ErrMalformed = errors.New("malformed message")
	ErrDenied    = errors.New("message does not authenticate")
)

// Type is the type of a datagram, or 0 when it is too short or long to be one of
// ours, or not zero where it must be.
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

// Receiver is the index by which the receiver of a response, cookie, transport or
// unknown message knows what it belongs to. The datagram has passed Type.
func Receiver(b []byte) uint32 {
	if b[0] == TypeResponse {
		return binary.BigEndian.Uint32(b[8:])
	}
	return binary.BigEndian.Uint32(b[4:])
}

// Unknown is the answer to a transport message whose index is not known.
func Unknown(b []byte) (reply [HeaderLen]byte) {
	copy(reply[:], b[:HeaderLen])
	reply[0] = TypeUnknown
	return reply
}
