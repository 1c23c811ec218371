package session

import (
	"crypto/aes"
	"crypto/cipher"
	"encoding/binary"
	"sync/atomic"
	"time"

	"golang.org/x/crypto/chacha20poly1305"
	"golang.org/x/sys/cpu"
)

// The life of a session. A peer that has something to send replaces it after
// RekeyAfter or RekeyMessages; it is worth nothing after RejectAfter or
// RejectMessages. RejectMessages is what AES-GCM bears with packets of up to 2 KiB
// (RFC 9001, appendix B.1.1).
const (
	RekeyAfter     = 120 * time.Second
	RejectAfter    = 180 * time.Second
	RekeyMessages  = 1 << 26
	RejectMessages = 1 << 28
)

// HasAES reports whether this processor makes AES-GCM faster than
// ChaCha20-Poly1305.
var HasAES = cpu.X86.HasAES && cpu.X86.HasPCLMULQDQ || cpu.ARM64.HasAES && cpu.ARM64.HasPMULL

// Session is the keys between two nodes after a handshake. Seal and the fields may
// be used by many goroutines, Open by one at a time.
type Session struct {
	Local, Remote uint32    // the indexes by which we and the peer know it
	Created       time.Time // of the caller's clock
	Initiator     bool      // we began the handshake
	AES           bool      // AES-128-GCM; else ChaCha20-Poly1305

	sent   atomic.Uint64
	seal   cipher.AEAD
	open   cipher.AEAD
	window Window
}

// newSession makes a session of Noise's two keys. AES takes the first half of a
// key: 128 bits match the curve, and are a third faster than 256.
func newSession(local, remote uint32, initiator, useAES bool, sealKey, openKey [32]byte) *Session {
	aead := func(key [32]byte) cipher.AEAD {
		if !useAES {
			a, _ := chacha20poly1305.New(key[:]) // fails for other lengths of key only
			return a
		}
		block, _ := aes.NewCipher(key[:16])
		a, _ := cipher.NewGCM(block)
		return a
	}
	return &Session{Local: local, Remote: remote, Initiator: initiator, AES: useAES, seal: aead(sealKey), open: aead(openKey)}
}

// Seal appends the message that carries packet to dst, and returns it. They must
// not overlap. It returns nil once the keys are used up.
func (s *Session) Seal(dst []byte, kind Kind, packet []byte) []byte {
	counter := s.sent.Add(1) - 1
	if counter >= RejectMessages {
		return nil
	}
	at := len(dst)
	dst = append(dst, TypeTransport, 0, 0, 0)
	dst = binary.BigEndian.AppendUint32(dst, s.Remote)
	dst = binary.BigEndian.AppendUint64(dst, uint64(kind)<<56|counter)
	// The nonce is the rest of the header, where it stands: unique for its counter,
	// and nothing in it can be changed unnoticed.
	return s.seal.Seal(dst, dst[at+4:at+HeaderLen], packet, nil)
}

// Open takes a transport message that has passed Type and is for this session, and
// returns its packet, which takes the place of what was sealed.
// ErrMalformed is a replay or an exhausted counter, ErrDenied a forgery.
func (s *Session) Open(msg []byte) (Kind, []byte, error) {
	nonce := binary.BigEndian.Uint64(msg[8:])
	counter := nonce & (1<<56 - 1)
	if counter >= RejectMessages || !s.window.Fresh(counter) {
		return 0, nil, ErrMalformed
	}
	packet, err := s.open.Open(msg[HeaderLen:HeaderLen], msg[4:HeaderLen], msg[HeaderLen:], nil)
	if err != nil {
		return 0, nil, ErrDenied
	}
	s.window.Take(counter)
	return Kind(nonce >> 56), packet, nil
}

// Sent is how many messages were sealed.
func (s *Session) Sent() uint64 { return s.sent.Load() }

// Counts says how many messages were opened, and how many were sent as far as can
// be seen. It is for the goroutine that opens.
func (s *Session) Counts() (received, expected uint64) { return s.window.Counts() }

// Usable reports whether the session may still be sent on and taken from.
func (s *Session) Usable(now time.Time) bool {
	return now.Sub(s.Created) < RejectAfter && s.sent.Load() < RejectMessages
}

// Old reports whether the one who sends should see to a new session. Whoever began
// this one does so first, so that both do not at once.
func (s *Session) Old(now time.Time) bool {
	after := RekeyAfter
	if !s.Initiator {
		after += 15 * time.Second
	}
	return now.Sub(s.Created) >= after || s.sent.Load() >= RekeyMessages
}
